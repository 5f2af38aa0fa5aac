"""The inputs of the voice encoder's networks: log-mel frames of a waveform. Whisper's are in layers/mel.py."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from voice_clone.layers import mel

RATE = 16_000  # Hz of `speaker_frames`
SPEAKER_BANDS, SPEAKER_FFT = 80, 512
WINDOW, SHIFT = 400, 160  # samples of a window of `speaker_frames` and between two of them

REFERENCE_RATE = 24_000  # Hz of `reference_frames`
REFERENCE_BANDS, REFERENCE_FFT, REFERENCE_HOP = 80, 1920, 480


def speaker_frames(waveform: Tensor) -> Tensor:
    """Kaldi's filter-bank frames (its default options, 80 bands, no dither), minus their mean over time.

    https://kaldi-asr.org/doc/feat.html: of each window its mean is taken away, then 0.97 of the sample before; it is
    shaped by a Hann window to the power of 0.85. Triangles are equally spaced on 1127 ln(1 + f / 700).

    Args:
        waveform: float32 [T] in -1..1 at 16 kHz, at least 400 samples.

    Returns:
        float32 [1 + (T - 400) // 160, 80].
    """
    windows = waveform.unfold(0, WINDOW, SHIFT)
    windows = windows - windows.mean(dim=1, keepdim=True)
    before = F.pad(windows[None], (1, 0), mode="replicate")[0, :, :-1]
    shape = torch.hann_window(WINDOW, periodic=False, device=waveform.device) ** 0.85
    shaped = F.pad((windows - 0.97 * before) * shape, (0, SPEAKER_FFT - WINDOW))
    power = torch.fft.rfft(shaped).abs() ** 2
    bands = torch.log((power @ _kaldi_filters().to(waveform.device).T).clamp(min=torch.finfo(torch.float32).eps))
    return bands - bands.mean(dim=0, keepdim=True)


def reference_frames(waveform: Tensor) -> Tensor:
    """The flow's log-mel frames of the clip.

    Args:
        waveform: float32 [T] at 24 kHz, more than 720 samples.

    Returns:
        float32 [T // 480, 80].
    """
    return mel.log_mel(waveform, REFERENCE_BANDS, REFERENCE_RATE, REFERENCE_FFT, REFERENCE_HOP)


@lru_cache(maxsize=1)
def _kaldi_filters() -> Tensor:
    """Float32 [80, 257]: triangles from 20 Hz to 8 kHz, whose sides are straight in mel; none hears 8 kHz itself."""
    low, high = (1127.0 * math.log(1 + hz / 700.0) for hz in (20.0, RATE / 2))
    step = (high - low) / (SPEAKER_BANDS + 1)
    edges = low + step * torch.arange(SPEAKER_BANDS + 2)
    bins = 1127.0 * (1 + torch.arange(SPEAKER_FFT // 2) * (RATE / SPEAKER_FFT) / 700.0).log()
    lower, centre, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - lower) / (centre - lower), (upper - bins) / (upper - centre)
    return F.pad(torch.minimum(rising, falling).clamp(min=0), (0, 1))
