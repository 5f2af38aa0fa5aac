"""Something like speech, which the official packages and ours encode."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def speech_like(samples: int, rate: int) -> Tensor:
    """A voice with overtones, pauses and breath: float32 [samples], RMS near 0.1; another one for another length."""
    generator = torch.Generator().manual_seed(samples)
    time = torch.arange(samples) / rate
    pitch = 2 * math.pi * (120 * time + 3 * torch.sin(7 * time))
    voice = sum(torch.sin(n * pitch) / n for n in range(1, 9)) * torch.sin(4 * time).clamp(min=0)
    return 0.1 * voice + 0.02 * torch.randn(samples, generator=generator)


def rms(x: Tensor) -> float:
    """Root mean square."""
    return float(x.square().mean().sqrt())
