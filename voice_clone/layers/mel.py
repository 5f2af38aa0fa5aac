"""The log-mel frames that vocoders are trained on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from voice_clone.layers.mel_filters import slaney_filters


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
    padding = (n_fft - hop) // 2
    padded = F.pad(waveform[None], (padding, padding), mode="reflect")
    window = torch.hann_window(n_fft, device=waveform.device)
    spectrum = torch.stft(padded, n_fft, hop, window=window, center=False, return_complex=True)[0]  # [bins, frames]
    magnitude = torch.sqrt(torch.view_as_real(spectrum).square().sum(-1) + 1e-9)
    filters = torch.from_numpy(slaney_filters(bands, sample_rate, n_fft, low, high)).to(waveform.device)
    return torch.log((filters @ magnitude).clamp(min=1e-5)).T
