"""Filters of mel bands on the Slaney scale. They need no torch."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

_BREAK_HZ = 1000.0  # the Slaney scale is linear below, logarithmic above
_HZ_PER_MEL = 200.0 / 3
_LOG_STEP = np.log(6.4) / 27


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
