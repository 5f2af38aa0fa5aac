"""Whether two waveforms are one speech.

How a server cuts a stream into chunks depends on its pace, and with the chunks the order of floating-point sums: the
same codes give samples that differ by rounding (a few 1e-5 of their RMS), other codes give another waveform altogether.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-3  # of the RMS, where chunks may have been cut in another way
EXACT = 1e-5  # RMS of the error, of the RMS, where they were not
PEAK = 1e-4  # the largest error, of the RMS: 1.5 M samples of the tiny decoder have one of 4e-5


def is_same_audio(got: NDArray[np.float32], expected: NDArray[np.float32]) -> bool:
    """Same length, and no sample further apart than rounding."""
    if got.shape != expected.shape:
        return False
    rms = np.sqrt(np.mean(np.square(expected, dtype=np.float64)))
    return bool(np.abs(got - expected).max() <= ROUNDING * rms)


def assert_same_audio(actual: NDArray[np.float32], expected: NDArray[np.float32], peak: float = float("inf")) -> None:
    """Same length and type, and errors of rounding alone; the expected audio must be louder than near silence.

    Args:
        peak: the largest error of a sample, of the RMS.
    """
    rms = float(np.sqrt(np.mean(expected**2)))
    assert rms > 0.01, "near silence proves nothing"
    assert actual.shape == expected.shape and actual.dtype == np.float32
    error = actual - expected
    assert float(np.sqrt(np.mean(error**2))) <= EXACT * rms and np.abs(error).max() <= peak * rms
