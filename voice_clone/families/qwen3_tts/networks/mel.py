"""Log-mel spectrogram of the speaker encoder (qwen-tts 0.1.1, `modeling_qwen3_tts.py`, `mel_spectrogram`)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

N_FFT = 1024  # also the window's length
HOP = 256
FMIN = 0.0
FMAX = 12000.0
PADDING = (N_FFT - HOP) // 2

_BREAK_HZ = 1000.0  # the Slaney scale is linear below, logarithmic above
_HZ_PER_MEL = 200.0 / 3
_LOG_STEP = np.log(6.4) / 27


def log_mel(waveform: Tensor, mel_dim: int, sample_rate: int) -> Tensor:
    """Log-mel frames of a mono waveform.

    Args:
        waveform: float32 [T], more than `PADDING` samples.
        mel_dim: number of mel bands.
        sample_rate: Hz.

    Returns:
        float32 [frames, mel_dim] with frames = T // 256 (+-0: windows of 1024 samples, hop 256, reflect padding).
    """
    padded = F.pad(waveform[None], (PADDING, PADDING), mode="reflect")  # [1, T + 768]
    window = torch.hann_window(N_FFT, device=waveform.device)
    spectrum = torch.stft(padded, N_FFT, HOP, window=window, center=False, return_complex=True)[0]  # [513, frames]
    magnitude = torch.sqrt(torch.view_as_real(spectrum).square().sum(-1) + 1e-9)
    bands = torch.from_numpy(mel_filterbank(mel_dim, sample_rate)).to(waveform.device) @ magnitude
    return torch.log(bands.clamp(min=1e-5)).T


@lru_cache(maxsize=4)
def mel_filterbank(mel_dim: int, sample_rate: int) -> npt.NDArray[np.float32]:
    """Triangular filters, equally spaced on the Slaney mel scale, each of unit area in Hz.

    Slaney, "Auditory Toolbox", 1998 (the scale and normalisation that librosa calls `slaney`).

    Returns:
        float32 [mel_dim, 513].
    """
    bins = np.linspace(0.0, sample_rate / 2, N_FFT // 2 + 1)
    edges = _mel_to_hz(np.linspace(_hz_to_mel(FMIN), _hz_to_mel(FMAX), mel_dim + 2))
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (bins - low) / (centre - low)
    falling = (high - bins) / (high - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    filters: npt.NDArray[np.float32] = (triangles * (2.0 / (high - low))).astype(np.float32)
    return filters


def _hz_to_mel(hz: float) -> float:
    if hz < _BREAK_HZ:
        return hz / _HZ_PER_MEL
    return float(_BREAK_HZ / _HZ_PER_MEL + np.log(hz / _BREAK_HZ) / _LOG_STEP)


def _mel_to_hz(mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    break_mel = _BREAK_HZ / _HZ_PER_MEL
    return np.where(mel < break_mel, mel * _HZ_PER_MEL, _BREAK_HZ * np.exp(_LOG_STEP * (mel - break_mel)))
