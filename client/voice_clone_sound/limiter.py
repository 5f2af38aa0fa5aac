"""A limiter of true peaks, for a stream."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

CEILING = -1.1
"""dBTP. Meters differ by 0.1, and none is to show more than -1."""
LOOK_AHEAD = 0.0015
"""Seconds."""
_GRID = 192_000  # Hz, at which the peaks between the samples are looked for
_REACH = 6  # samples on each side that a value between two samples is computed from

Samples = NDArray[np.float32]


class Limiter:
    """Lowers the gain around each true peak above `CEILING`; all other samples keep their bits.

    The gain is the least that a peak needs within the look-ahead, averaged over it. The output does not depend on the
    division into chunks: each value is computed in the same order. It has the input's length; the last samples, those
    of the look-ahead and 6 more, wait for what follows them.

    Args:
        rate: Hz.
    """

    def __init__(self, rate: int) -> None:
        self._width = max(1, round(LOOK_AHEAD * rate))
        self._edge = self._width + _REACH  # samples before and after one that its gain depends on
        between = np.arange(1, math.ceil(_GRID / rate)) / math.ceil(_GRID / rate)
        distance = np.arange(1 - _REACH, _REACH + 1)[:, None] - between
        taps = np.sinc(distance) * np.i0(5 * np.sqrt(1 - (distance / _REACH) ** 2)) / np.i0(5)  # Kaiser's window
        self._taps = (taps / taps.sum(0)).astype(np.float32)[:, :, None]  # [12, points between two samples, 1]
        self._ceiling = np.float32(10 ** (CEILING / 20))
        self._safe = self._ceiling / np.float32(1.001 * np.abs(self._taps).sum(0).max())  # no peak among such samples
        self._held = np.zeros(self._edge, np.float32)

    def push(self, samples: Samples, final: bool) -> Samples:
        """The output after these samples.

        Args:
            samples: float32 [n].
            final: no samples follow; the output is complete.
        """
        end = [np.zeros(self._edge, np.float32)] if final else []
        held = np.concatenate([self._held, samples, *end])
        count = max(0, len(held) - 2 * self._edge)
        self._held = held[count:]
        out: Samples = held[self._edge : self._edge + count]
        return np.multiply(out, self._gains(held), dtype=np.float32) if count else out

    def _gains(self, held: Samples) -> Samples | float:
        """The gain of each sample but those of the edges."""
        loud = np.flatnonzero(_over(np.maximum, np.abs(held), 2 * _REACH) > self._safe)
        if not len(loud):
            return 1.0
        near = np.stack([held[loud + tap] for tap in range(2 * _REACH)])
        between = reduce(np.add, (taps * values for taps, values in zip(self._taps, near, strict=True)))
        peaks = np.maximum(np.abs(near[_REACH - 1]), np.abs(between).max(0, initial=0.0))
        needed = np.ones(len(held) - 2 * _REACH + 1, np.float32)
        needed[loud] = self._ceiling / np.maximum(peaks, self._ceiling)
        least = _over(np.minimum, needed, self._width + 3)  # a peak counts for two samples on each side of it
        count = len(least) - self._width + 1
        mean: Samples = reduce(np.add, (least[i : i + count] for i in range(self._width))) / np.float32(self._width)
        return mean


def _over(choose: Any, values: Samples, width: int) -> Samples:
    """The least or greatest of each `width` values in a row."""
    size = 1
    while size < width:
        step = min(size, width - size)
        values = choose(values[:-step], values[step:])
        size += step
    return values
