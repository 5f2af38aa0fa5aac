"""SnakeBeta, the periodic activation of neural vocoders."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SnakeBeta(nn.Module):
    """x + sin²(αx) / β for each channel (Ziyin et al. 2020; with β separate from α: BigVGAN, Lee et al. 2023).

    α and β are stored as logarithms. x: [B, C, T].
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        alpha = self.alpha.exp()[:, None]
        beta = self.beta.exp()[:, None]
        # In place, because at the sample rate the time is that of reading and writing memory.
        return (x * alpha).sin_().square_().mul_(1.0 / (beta + 1e-9)).add_(x)
