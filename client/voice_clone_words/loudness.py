"""Where a speech is silent: its energy in short frames."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FRAME = 0.005
"""Seconds of a frame."""
_BELOW = 10 ** (-35 / 10)
"""Energy of silence, relative to the loud parts. With 30 or 40 dB edges of words are hardly other ones."""
_QUIET, _LOUD = 3, 95
"""Percentiles of the frames."""
_SMOOTH = 10
"""Frames in which the energy of a sound that does not change is the same."""
_STEADY = 10 ** (6 / 10)
"""Energy of the loud parts of such a sound, relative to the quiet ones."""


class Loudness:
    """The energy of a speech that arrives in pieces.

    Args:
        rate: samples a second.
    """

    def __init__(self, rate: int) -> None:
        self.step = max(1, round(rate * FRAME))
        """Samples of a frame."""
        self._rest = np.zeros(0, np.float32)
        self._energies = np.zeros(1024, np.float64)
        self._count = 0

    def feed(self, samples: NDArray[np.float32]) -> None:
        """The next samples."""
        samples = np.concatenate([self._rest, samples])
        count = len(samples) // self.step
        self._rest = samples[count * self.step :].copy()
        frames = samples[: count * self.step].reshape(count, self.step).astype(np.float64)
        if self._count + count > len(self._energies):
            self._energies = np.concatenate([self._energies, np.zeros(max(count, len(self._energies)))])
        self._energies[self._count : self._count + count] = np.square(frames).mean(axis=1)
        self._count += count

    def loudest(self) -> float:
        """The mean square of the loudest frame so far."""
        return float(self._energies[: self._count].max(initial=0.0))

    def floor(self) -> float:
        """The energy of the quietest frames so far, relative to the loud ones."""
        quiet, loud = np.percentile(self._energies[: max(1, self._count)], [_QUIET, _LOUD])
        return float(quiet / loud) if loud > 0 else 0.0

    def steady(self) -> bool:
        """Whether it is about as loud throughout, as noise alone and chords are, but no speech is."""
        smooth = np.convolve(self._energies[: self._count], np.full(_SMOOTH, 1 / _SMOOTH), "valid")
        quiet, loud = np.percentile(smooth, [_QUIET, _LOUD])
        return bool(loud < _STEADY * quiet)

    def loud(self) -> NDArray[np.bool_]:
        """Whether each whole frame so far is nearer to the loud frames than to the quiet ones, in decibels."""
        energies = self._energies[: self._count]
        if not self._count:
            return np.zeros(0, np.bool_)
        quiet, most = np.percentile(energies, [_QUIET, _LOUD])
        loud: NDArray[np.bool_] = energies > np.sqrt(max(quiet, most * _BELOW) * most)
        return loud

    def silent(self) -> NDArray[np.bool_]:
        """Whether each whole frame so far is silent, compared with all that came so far."""
        energies = self._energies[: self._count]
        if not self._count:
            return np.zeros(0, np.bool_)
        silent: NDArray[np.bool_] = energies <= np.percentile(energies, _LOUD) * _BELOW
        return silent


def runs_of(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The runs of true flags: begin and end [runs, 2]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2)
