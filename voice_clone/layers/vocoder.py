"""The blocks of convolutional vocoders (DAC, Kumar et al. 2023): Snake, dilated residual units, upsampling."""

from __future__ import annotations

from torch import Tensor, nn

from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d
from voice_clone.layers.snake import Snake, SnakeBeta
from voice_clone.layers.streaming import ChunkPass

SnakeKind = type[Snake] | type[SnakeBeta]
DILATIONS = (1, 3, 9)


class ResidualUnit(nn.Module):
    """A dilated and a pointwise convolution, each behind a Snake. x: [B, C, T]."""

    def __init__(self, dim: int, dilation: int, snake: SnakeKind) -> None:
        super().__init__()
        self.act1 = snake(dim)
        self.conv1 = CausalConv1d(dim, dim, 7, dilation=dilation)
        self.act2 = snake(dim)
        self.conv2 = CausalConv1d(dim, dim, 1)

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        hidden = stream(self.conv1, self.act1(x))
        hidden = stream(self.conv2, self.act2(hidden))
        return x + hidden


class DecoderBlock(nn.Module):
    """Upsampling by `rate` to half the channels, then residual units of growing dilation. x: [B, C, T]."""

    def __init__(self, dim: int, rate: int, snake: SnakeKind) -> None:
        super().__init__()
        self.block = nn.ModuleList([snake(dim), CausalConvTranspose1d(dim, dim // 2, 2 * rate, rate)])
        self.block.extend(ResidualUnit(dim // 2, dilation, snake) for dilation in DILATIONS)

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        snake, upsample, *units = self.block
        x = stream(upsample, snake(x))
        for unit in units:
            x = unit(x, stream)
        return x


def vocoder(latent: int, dim: int, rates: tuple[int, ...], snake: SnakeKind) -> nn.ModuleList:
    """Latent to waveform: a convolution to `dim` channels, a block for each rate, Snake, a convolution to one."""
    layers: list[nn.Module] = [CausalConv1d(latent, dim, 7)]
    for rate in rates:
        layers.append(DecoderBlock(dim, rate, snake))
        dim //= 2
    return nn.ModuleList([*layers, snake(dim), CausalConv1d(dim, 1, 7)])
