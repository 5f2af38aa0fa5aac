"""The blocks of convolutional vocoders (DAC, Kumar et al. 2023): Snake, dilated residual units, upsampling.

Shapes: x [B, C, T].
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d
from voice_clone.layers.graphs import CachedOnGpu
from voice_clone.layers.streaming import ChunkPass


class _Periodic(nn.Module, ABC):
    """The periodic activation Snake, x + sin²(ax) b for each channel; `factors` are a and b."""

    alpha: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        self._factors: CachedOnGpu[tuple[Tensor, Tensor]] = CachedOnGpu()

    @property
    @abstractmethod
    def factors(self) -> tuple[Tensor, Tensor]:
        """a, by which x is multiplied, and b, by which the squared sine is multiplied; [C] each."""

    def forward(self, x: Tensor) -> Tensor:
        inner, outer = self._factors.get(self.alpha, lambda: self.factors)
        # In place, because at the sample rate the time is that of reading and writing memory.
        return torch.addcmul(x, (x * inner[:, None]).sin_().square_(), outer[:, None])


class Snake(_Periodic):
    """x + sin²(αx) / α for each channel (Ziyin et al. 2020)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        alpha = self.alpha.flatten()
        return alpha, 1.0 / (alpha + 1e-9)


class SnakeBeta(_Periodic):
    """x + sin²(αx) / β for each channel (BigVGAN, Lee et al. 2023). α and β are stored as logarithms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        return self.alpha.exp(), 1.0 / (self.beta.exp() + 1e-9)


SnakeKind = type[Snake] | type[SnakeBeta]
DILATIONS = (1, 3, 9)


class ResidualUnit(nn.Module):
    """A dilated and a pointwise convolution, each after a Snake."""

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
    """Upsampling by `rate` to half the channels, then residual units of growing dilation."""

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
