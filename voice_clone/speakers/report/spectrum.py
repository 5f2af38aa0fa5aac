"""Short-time spectra of a clip: the power of each band in each frame, and of the frame itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW, HOP = 0.032, 0.010  # seconds
BANDS = 20  # of equal width in mel
_LOWEST, _HIGHEST = 100.0, 8000.0  # Hz: below is hum, above little of speech
_HIGHEST_SAMPLE = 10.0  # of full scale: files of floats may hold any number, and its square would be infinite
_BLOCK = 256  # frames transformed at a time: bounds memory whatever the sample rate


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Frames of a clip: frame k is centred on sample k * hop + window / 2.

    Attributes:
        power: float64 [frames], mean square of the frame's samples.
        bands: float64 [frames, BANDS], the same, split by frequency.
        hop, window: samples.
    """

    power: NDArray[np.float64]
    bands: NDArray[np.float64]
    hop: int
    window: int


def bounded(waveform: NDArray[np.float32]) -> NDArray[np.float32]:
    """The waveform, with samples that no recorder makes at a number whose square is finite."""
    return np.clip(waveform, -_HIGHEST_SAMPLE, _HIGHEST_SAMPLE)


def spectrum(waveform: NDArray[np.float32], rate: int) -> Spectrum:
    """The spectrum of a waveform, float32 [samples], bounded, at `rate` Hz; it has at least `WINDOW` seconds."""
    window, hop = round(WINDOW * rate), round(HOP * rate)
    weights = np.hanning(window).astype(np.float32)
    weights /= math.sqrt(float(np.mean(weights**2)))  # a window does not change the mean square
    frames = np.lib.stride_tricks.sliding_window_view(waveform, window)[::hop]
    first = _edges(rate, window)
    power, bands = [], []
    for start in range(0, len(frames), _BLOCK):
        block = frames[start : start + _BLOCK] * weights
        power.append(np.mean(block**2, axis=1))
        squares = np.abs(np.fft.rfft(block, axis=1)) ** 2
        bands.append(np.add.reduceat(squares[:, : first[-1]], first[:-1], axis=1) * (2 / window**2))
    return Spectrum(np.concatenate(power).astype(float), np.concatenate(bands).astype(float), hop, window)


def _edges(rate: int, window: int) -> NDArray[np.int64]:
    """The first bin of each band, and the one after the last band."""
    low, high = (1127 * math.log1p(f / 700) for f in (_LOWEST, min(_HIGHEST, rate / 2)))
    hertz = 700 * np.expm1(np.linspace(low, high, BANDS + 1) / 1127)
    edges: NDArray[np.int64] = np.round(hertz * window / rate).astype(np.int64)
    return edges
