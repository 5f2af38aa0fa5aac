"""The blocks of convolutional vocoders (DAC, Kumar et al. 2023): Snake, dilated residual units, up- and downsampling.

Shapes: x [B, C, T].
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d
from voice_clone.layers.graphs import CachedOnGpu
from voice_clone.layers.streaming import ChunkPass, StreamingModule


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
        alpha, beta = self.alpha.double().exp(), self.beta.double().exp()  # rounded once, as native code does it
        return alpha.to(self.alpha.dtype), (1.0 / (beta + 1e-9)).to(self.beta.dtype)


SnakeKind = type[Snake] | type[SnakeBeta]
DILATIONS = (1, 3, 9)


class ResidualUnit(nn.Module):
    """A dilated and a pointwise convolution, each after a Snake.

    Args:
        depthwise: the dilated one keeps the channels apart.
    """

    def __init__(self, dim: int, dilation: int, snake: SnakeKind, depthwise: bool = False) -> None:
        super().__init__()
        self.act1 = snake(dim)
        self.conv1 = CausalConv1d(dim, dim, 7, dilation=dilation, groups=dim if depthwise else 1)
        self.act2 = snake(dim)
        self.conv2 = CausalConv1d(dim, dim, 1)

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        hidden = stream(self.conv1, self.act1(x))
        hidden = stream(self.conv2, self.act2(hidden))
        return x + hidden


class Affine(nn.Module):
    """x * scale + shift for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift[:, None], x, self.scale[:, None])


class EncoderBlock(nn.Module):
    """Residual units of growing dilation, then a convolution to `dim` channels, twice as many, and 1 / `rate` of the
    steps.

    Args:
        depthwise: as of `ResidualUnit`.

    Attributes:
        block: these layers, and behind them what a family adds.
        convolutional: how many these are.
    """

    convolutional = len(DILATIONS) + 2

    def __init__(self, dim: int, rate: int, snake: SnakeKind, depthwise: bool = False) -> None:
        super().__init__()
        half = dim // 2
        self.block = nn.ModuleList(ResidualUnit(half, dilation, snake, depthwise) for dilation in DILATIONS)
        self.block.extend([snake(half), CausalConv1d(half, dim, 2 * rate, rate)])

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        *units, snake, convolution = self.block[: self.convolutional]
        for unit in units:
            x = unit(x, stream)
        return stream(convolution, snake(x))


class DecoderBlock(nn.Module):
    """Upsampling by `rate` to half the channels, then residual units of growing dilation.

    Args:
        depthwise: as of `ResidualUnit`.
        affine: an `Affine` stands before it.
    """

    def __init__(self, dim: int, rate: int, snake: SnakeKind, depthwise: bool = False, affine: bool = False) -> None:
        super().__init__()
        self.affine = Affine(dim) if affine else None
        self.block = nn.ModuleList([snake(dim), CausalConvTranspose1d(dim, dim // 2, 2 * rate, rate)])
        self.block.extend(ResidualUnit(dim // 2, dilation, snake, depthwise) for dilation in DILATIONS)

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        snake, upsample, *units = self.block
        if self.affine is not None:
            x = self.affine(x)
        x = stream(upsample, snake(x))
        for unit in units:
            x = unit(x, stream)
        return x


class Vocoder(nn.ModuleList):
    """Latent [B, latent, T] to waveform [B, 1, T * product of the rates]: a convolution to `dim` channels, a block for
    each rate, Snake, a convolution to one channel.

    Args:
        depthwise: as of `ResidualUnit`; the first convolution is a depthwise and a pointwise one, too.
        affine: as of `DecoderBlock`.
    """

    def __init__(
        self,
        latent: int,
        dim: int,
        rates: tuple[int, ...],
        snake: SnakeKind,
        depthwise: bool = False,
        affine: bool = False,
    ) -> None:
        first = [CausalConv1d(latent, dim, 7)]
        if depthwise:
            first = [CausalConv1d(latent, latent, 7, groups=latent), CausalConv1d(latent, dim, 1)]
        layers: list[nn.Module] = [*first]
        for rate in rates:
            layers.append(DecoderBlock(dim, rate, snake, depthwise, affine))
            dim //= 2
        super().__init__([*layers, snake(dim), CausalConv1d(dim, 1, 7)])

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        for layer in self:
            if isinstance(layer, DecoderBlock):
                x = layer(x, stream)
            else:
                x = stream(layer, x) if isinstance(layer, StreamingModule) else layer(x)
        return x
