"""Cuts silence out of a whole waveform, or out of one that is still coming.

What counts as silence, and how much of it stays, is sample by sample the same as in `remove_silence` of omnivoice 0.2.1
(`utils/audio.py`), which uses pydub 0.25.1 (`silence.py`): 16 bit, windows that begin every 10 ms, levels as whole
numbers, times as whole milliseconds.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

STEP = 10  # milliseconds from window to window, and of the pieces in which the ends are searched
LOUD = 104  # the least RMS, rounded down, that is above -50 dB of full scale, in 16 bit


def remove_silence(waveform: Samples, rate: int, middle: int, leading: int, trailing: int) -> Samples:
    """Shorten long silences, and those at the ends.

    Args:
        waveform: float32 [samples].
        rate: Hz, a multiple of 1000.
        middle: milliseconds; a silence at least so long keeps so much of both its ends.
        leading, trailing: milliseconds that stay at the ends.

    Returns:
        float32 [samples], of 16 bit; empty if all is silent.
    """
    per_ms = rate // 1000
    length = round(1000 * (len(waveform) / rate))  # a last part of a millisecond is filled with zeros, or left out
    pcm = np.zeros(length * per_ms, np.int16)
    taken = _to_int16(waveform[: len(pcm)])
    pcm[: len(taken)] = taken
    kept = [pcm[begin * per_ms : end * per_ms] for begin, end in _kept(pcm, per_ms, middle)]
    joined = np.concatenate(kept) if kept else pcm[:0]
    joined = joined[max(0, _silence_before(joined, per_ms) - leading) * per_ms :]
    joined = joined[: len(joined) - max(0, _silence_before(joined[::-1], per_ms) - trailing) * per_ms]
    return _from_int16(joined)


def _kept(pcm: NDArray[np.int16], per_ms: int, middle: int) -> list[tuple[int, int]]:
    """What stays of a waveform before its ends are cut, in milliseconds from ... to."""
    length = len(pcm) // per_ms
    silent: list[list[int]] = []
    if length >= middle:
        begins = np.arange(0, length - middle + 1, STEP)
        if begins[-1] != length - middle:
            begins = np.append(begins, length - middle)
        for begin in begins[_quiet(pcm, begins * per_ms, (begins + middle) * per_ms)].tolist():
            if silent and begin <= silent[-1][1]:
                silent[-1][1] = begin + middle
            else:
                silent.append([begin, begin + middle])
    if silent == [[0, length]]:
        return []
    ends = [0, *(end for _, end in silent)]
    begins_of_silence = [*(begin for begin, _ in silent), length]
    loud = [pair for pair in zip(ends, begins_of_silence, strict=True) if pair[0] < pair[1]]
    padded = [[begin - middle, end + middle] for begin, end in loud]
    for before, after in pairwise(padded):
        if after[0] < before[1]:
            before[1] = after[0] = (before[1] + after[0]) // 2
    return [(max(begin, 0), min(end, length)) for begin, end in padded]


def _silence_before(pcm: NDArray[np.int16], per_ms: int) -> int:
    """Milliseconds of silence with which it begins."""
    length = len(pcm) // per_ms
    begins = np.arange(0, length, STEP)
    loud = ~_quiet(pcm, begins * per_ms, np.minimum(begins + STEP, length) * per_ms)
    return int(begins[loud.argmax()]) if loud.any() else length


def _quiet(pcm: NDArray[np.int16], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether windows [begin, end) are silent."""
    sums = np.concatenate([[0], np.cumsum(np.square(pcm.astype(np.int64)))])
    quiet: NDArray[np.bool_] = sums[ends] - sums[begins] < LOUD * LOUD * (ends - begins)
    return quiet


def _to_int16(waveform: Samples) -> NDArray[np.int16]:
    """Towards zero, as a cast does it."""
    return (waveform * np.float32(32768)).clip(-32768, 32767).astype(np.int16)


def _from_int16(pcm: NDArray[np.int16]) -> Samples:
    return pcm.astype(np.float32) / np.float32(32768)


class SilenceFilter:
    """`remove_silence` of a waveform that comes in pieces, whose whole length is a multiple of 10 ms.

    Speech goes through at once. Only a silence that may still turn out to be a long one is held back, and the very
    beginning, until it is clear that it is none. What comes out after so many samples does not depend on how they were
    cut.

    Args: as of `remove_silence`; multiples of 10 ms.
    """

    def __init__(self, rate: int, middle: int, leading: int, trailing: int) -> None:
        self._block = rate * STEP // 1000  # samples
        self._middle, self._leading, self._trailing = (ms // STEP for ms in (middle, leading, trailing))
        self._limit = LOUD * LOUD * self._block  # of the sum of squares of a block
        self._rest = np.zeros(0, np.float32)  # less than a block
        self._read = 0  # blocks
        self._sums: deque[int] = deque()  # of squares, of the blocks of a window
        self._window = 0  # the sum of these
        self._silence: tuple[int, int] | None = None  # the one that may go on, in blocks from ... to
        self._undecided: deque[tuple[int, NDArray[np.int16], bool]] = deque()  # number, samples, whether it is quiet
        self._begun = False  # whether there was a loud block
        self._quiet: deque[NDArray[np.int16]] = deque()  # blocks at the end that stay only if a loud one follows
        self._quiet_kept = 0  # quiet blocks behind the last loud one that stay in any case
        self._out: list[NDArray[np.int16]] = []

    def push(self, samples: Samples) -> Samples:
        """The next samples -> those that stay, as far as it is known."""
        samples = np.concatenate([self._rest, samples])
        whole = len(samples) // self._block * self._block
        self._rest = samples[whole:]
        for block in _to_int16(samples[:whole]).reshape(-1, self._block):
            self._take(block)
        return self._given()

    def end(self) -> Samples:
        """No samples follow -> the rest of those that stay.

        Raises:
            ValueError: the length is no multiple of 10 ms.
        """
        if len(self._rest):
            raise ValueError(f"{len(self._rest)} samples are left; the length must be a multiple of {self._block}")
        if self._silence is None or self._silence[1] < self._read:
            self._close()
        if not self._begun:  # all that stays is quiet
            self._out += list(self._quiet)[: self._trailing]
        return self._given()

    def _given(self) -> Samples:
        out, self._out = self._out, []
        return _from_int16(np.concatenate(out)) if out else np.zeros(0, np.float32)

    def _take(self, block: NDArray[np.int16]) -> None:
        """Look at the next block, then let go of what is decided."""
        energy = int(np.square(block.astype(np.int64)).sum())
        self._undecided.append((self._read, block, energy < self._limit))
        self._read += 1
        self._sums.append(energy)
        self._window += energy
        if len(self._sums) > self._middle:
            self._window -= self._sums.popleft()
        begin = self._read - self._middle  # of the window that ends here
        quiet = self._window < self._limit * self._middle
        if begin < 0:
            if not quiet:  # the first window cannot be silent any more
                self._close()
            return
        if quiet:
            joined = self._silence is not None and begin <= self._silence[1]
            self._silence = (self._silence[0] if joined and self._silence else begin, self._read)
        if self._silence is None or (not quiet and begin >= self._silence[1]):
            self._close()
        else:
            self._thin_out(*self._silence)

    def _thin_out(self, begin: int, end: int) -> None:
        """Of a silence that may go on, keep its beginning, and drop what is far from its end."""
        while self._undecided:
            number, block, quiet = self._undecided[0]
            if number < begin or (begin > 0 and number < begin + self._middle):
                self._keep(block, quiet)
            elif number >= end - self._middle:
                return
            self._undecided.popleft()

    def _close(self) -> None:
        """No silence goes on: what is left of the last one, and what follows it, stays."""
        least = self._silence[1] - self._middle if self._silence is not None else 0
        for number, block, quiet in self._undecided:
            if number >= least:
                self._keep(block, quiet)
        self._undecided.clear()
        self._silence = None

    def _keep(self, block: NDArray[np.int16], quiet: bool) -> None:
        """A block that stays, unless it is of a silence at an end."""
        if not quiet:
            self._out += [*self._quiet, block]
            self._quiet.clear()
            self._begun, self._quiet_kept = True, 0
        elif self._begun and self._quiet_kept < self._trailing:
            self._out.append(block)
            self._quiet_kept += 1
        else:
            self._quiet.append(block)
            if not self._begun and len(self._quiet) > self._leading:
                self._quiet.popleft()
