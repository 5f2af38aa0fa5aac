"""Cepstra: the envelope of a spectrum, as speech recognisers hear it.

Pre-emphasis, Hamming windows of 26 ms each 10 ms, mel bands, logarithm, cosine transform (Davis and Mermelstein 1980).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import librosa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tools.demo_voice.synthesis import SAMPLE_RATE

WINDOW, HOP, SIZE = 614, 240, 1024  # samples; of the Fourier transform
FLOOR = 1e-2  # power, added to each band
EMPHASIS = 0.97


@dataclass(frozen=True)
class Cepstrum:
    """Which mel bands are taken, between `low` and `high` Hz, and how many coefficients of them."""

    bands: int
    low: float
    high: float
    coefficients: int

    def centred(self, wave: Tensor) -> Tensor:
        """Windows centred at multiples of HOP: [..., T] -> [..., coefficients, T / HOP + 1]."""
        window = torch.hamming_window(WINDOW, device=wave.device)
        return self._of(power(_emphasised(wave), SIZE, HOP, window))

    def causal(self, wave: Tensor) -> Tensor:
        """Windows that end at multiples of HOP: [T] -> [coefficients, T / HOP]."""
        windows = causal_windows(_emphasised(wave), HOP, torch.hamming_window(WINDOW, device=wave.device))
        return self._of(torch.fft.rfft(windows, SIZE).abs().square().T)

    def _of(self, powers: Tensor) -> Tensor:
        bank, cosines = (each.to(powers.device) for each in self._tables)
        return cosines @ (bank @ powers + FLOOR).log()

    @cached_property
    def _tables(self) -> tuple[Tensor, Tensor]:
        """Mel bands of a power spectrum [bands, 513], and their cosine transform [coefficients, bands]."""
        bank: NDArray[np.float32] = librosa.filters.mel(
            sr=SAMPLE_RATE, n_fft=SIZE, n_mels=self.bands, fmin=self.low, fmax=self.high, htk=True, norm=None
        )
        places = (torch.arange(self.bands) + 0.5) / self.bands
        cosines = torch.cos(math.pi * torch.arange(self.coefficients)[:, None] * places)
        cosines[0] *= math.sqrt(0.5)
        return torch.from_numpy(bank), math.sqrt(2 / self.bands) * cosines


def causal_windows(wave: Tensor, hop: int, window: Tensor) -> Tensor:
    """Windows that end at multiples of `hop`: [T] -> [T / hop, length of the window]."""
    return F.pad(wave, (len(window) - hop, 0)).unfold(0, len(window), hop) * window


def power(wave: Tensor, size: int, hop: int, window: Tensor) -> Tensor:
    """Squared magnitudes [..., size / 2 + 1, T / hop + 1] of [..., T]; a window may be shorter than `size`."""
    spectrum = torch.stft(wave, size, hop, len(window), window, center=True, return_complex=True)
    return torch.view_as_real(spectrum).square().sum(-1)


def _emphasised(wave: Tensor) -> Tensor:
    return wave - EMPHASIS * F.pad(wave, (1, 0))[..., :-1]
