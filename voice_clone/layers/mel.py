"""Mel bands of a waveform: filters on the Slaney scale, which need no torch, and the log-mel frames on which vocoders
and Whisper are trained.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # native code needs the filters alone
    from torch import Tensor

WHISPER_RATE, WHISPER_BANDS, WHISPER_FFT, WHISPER_HOP = 16_000, 128, 400, 160
"""Hz, bands, samples of a window and from one frame to the next, of `whisper_frames`."""

_BREAK_HZ = 1000.0  # the Slaney scale is linear below, logarithmic above
_HZ_PER_MEL = 200.0 / 3
_LOG_STEP = np.log(6.4) / 27


def log_mel(
    waveform: Tensor, bands: int, sample_rate: int, n_fft: int, hop: int, low: float = 0.0, high: float | None = None
) -> Tensor:
    """Log-mel frames of a mono waveform as the HiFi-GAN family computes them: log(max(bands of magnitudes, 1e-5)).

    Kong, Kim, Bae, "HiFi-GAN", 2020. Windows of `n_fft` samples, reflected by (n_fft - hop) / 2 at both ends.

    Args:
        waveform: float32 [T], more samples than are reflected.
        sample_rate: Hz.
        low, high: Hz, of the outermost bands; None: half the sample rate.

    Returns:
        float32 [frames, bands] with T // hop frames.
    """
    import torch
    import torch.nn.functional as F

    padding = (n_fft - hop) // 2
    padded = F.pad(waveform[None], (padding, padding), mode="reflect")
    window = torch.hann_window(n_fft, device=waveform.device)
    spectrum = torch.stft(padded, n_fft, hop, window=window, center=False, return_complex=True)[0]  # [bins, frames]
    magnitude = torch.sqrt(torch.view_as_real(spectrum).square().sum(-1) + 1e-9)
    filters = torch.from_numpy(slaney_filters(bands, sample_rate, n_fft, low, high)).to(waveform.device)
    return torch.log((filters @ magnitude).clamp(min=1e-5)).T


def whisper_frames(waveform: Tensor) -> Tensor:
    """Whisper's log-mel frames: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", 2022.

    Args:
        waveform: float32 [T] at 16 kHz, more than 200 samples.

    Returns:
        float32 [128, T // 160], the loudest band at most 2 above the faintest.
    """
    import torch

    window = torch.hann_window(WHISPER_FFT, device=waveform.device)
    spectrum = torch.stft(waveform, WHISPER_FFT, WHISPER_HOP, window=window, return_complex=True)
    power = spectrum[:, :-1].abs() ** 2
    filters = torch.from_numpy(slaney_filters(WHISPER_BANDS, WHISPER_RATE, WHISPER_FFT)).to(waveform.device)
    bands = (filters @ power).clamp(min=1e-10).log10()
    return (torch.maximum(bands, bands.max() - 8.0) + 4.0) / 4.0


@lru_cache(maxsize=8)
def slaney_filters(
    bands: int, sample_rate: int, n_fft: int, low: float = 0.0, high: float | None = None
) -> npt.NDArray[np.float32]:
    """Triangular filters, equally spaced on the Slaney mel scale, each of unit area in Hz.

    Slaney, "Auditory Toolbox", 1998 (the scale and normalisation that librosa calls `slaney`).

    Args:
        sample_rate, low, high: Hz; `high` None: half the sample rate.

    Returns:
        float32 [bands, n_fft // 2 + 1].
    """
    top = sample_rate / 2 if high is None else high
    bins = np.linspace(0.0, sample_rate / 2, n_fft // 2 + 1)
    edges = _mel_to_hz(np.linspace(_hz_to_mel(low), _hz_to_mel(top), bands + 2))
    lower, centre, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (bins - lower) / (centre - lower)
    falling = (upper - bins) / (upper - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    filters: npt.NDArray[np.float32] = (triangles * (2.0 / (upper - lower))).astype(np.float32)
    return filters


def _hz_to_mel(hz: float) -> float:
    if hz < _BREAK_HZ:
        return hz / _HZ_PER_MEL
    return float(_BREAK_HZ / _HZ_PER_MEL + np.log(hz / _BREAK_HZ) / _LOG_STEP)


def _mel_to_hz(mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    break_mel = _BREAK_HZ / _HZ_PER_MEL
    return np.where(mel < break_mel, mel * _HZ_PER_MEL, _BREAK_HZ * np.exp(_LOG_STEP * (mel - break_mel)))
