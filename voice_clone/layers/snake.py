"""Snake, the periodic activation of neural vocoders, in two parametrisations. x: [B, C, T]."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Snake(nn.Module):
    """x + sin²(αx) / α for each channel (Ziyin et al. 2020)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """What x is multiplied with in the sine, and the squared sine after it; [C] each."""
        alpha = self.alpha.flatten()
        return alpha, 1.0 / (alpha + 1e-9)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.alpha).sin_().square_().mul_(1.0 / (self.alpha + 1e-9)).add_(x)


class SnakeBeta(nn.Module):
    """x + sin²(αx) / β for each channel (BigVGAN, Lee et al. 2023). α and β are stored as logarithms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """As of `Snake`."""
        return self.alpha.exp(), 1.0 / (self.beta.exp() + 1e-9)

    def forward(self, x: Tensor) -> Tensor:
        alpha = self.alpha.exp()[:, None]
        beta = self.beta.exp()[:, None]
        # In place, because at the sample rate the time is that of reading and writing memory.
        return (x * alpha).sin_().square_().mul_(1.0 / (beta + 1e-9)).add_(x)
