"""Snake, the periodic activation of neural vocoders, in two parametrisations. x: [B, C, T]."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from voice_clone.layers.kept import KeptOnGpu


class _Periodic(nn.Module, ABC):
    """x + sin²(ax) b for each channel; `factors` are a and b."""

    alpha: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        self._factors: KeptOnGpu[tuple[Tensor, Tensor]] = KeptOnGpu()

    @property
    @abstractmethod
    def factors(self) -> tuple[Tensor, Tensor]:
        """What x is multiplied with in the sine, and the squared sine after it; [C] each."""

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
