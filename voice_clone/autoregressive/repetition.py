"""Notices a runaway: a model that has read all its text and goes round in circles."""

from __future__ import annotations

LONGEST_CYCLE = 8  # frames


class Repetition:
    """Counts for how long codebook 0 of a stream, which carries what is said, has repeated itself.

    Silence and held sounds are cycles of one frame; stuck phrases are longer ones.
    """

    def __init__(self) -> None:
        self._recent: list[int] = []  # newest last
        self._runs = [0] * LONGEST_CYCLE  # frames in a row that equal the frame n + 1 before them

    def add(self, code: int) -> int:
        """Take the next frame's code; returns for how many frames the stream has repeated a cycle by now."""
        for n in range(LONGEST_CYCLE):
            repeats = n < len(self._recent) and self._recent[-1 - n] == code
            self._runs[n] = self._runs[n] + 1 if repeats else 0
        self._recent = [*self._recent[1 - LONGEST_CYCLE :], code]
        return max(self._runs)
