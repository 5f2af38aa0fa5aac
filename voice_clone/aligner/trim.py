"""Edges of words moved to their sound: a decoder sometimes gives a word the pause beside it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from voice_clone_words.loudness import FRAME, runs_of

_AT_EDGE = round(0.05 / FRAME)  # frames of silence that are taken off an edge
_NEAR = round(0.1 / FRAME)  # frames from an edge in which the tail of the word beside may be
_PAUSE = round(0.12 / FRAME)  # frames of silence behind such a tail


def trimmed(start: int, end: int, silent: NDArray[np.bool_], step: int) -> tuple[int, int]:
    """The edges of a word in samples, without the silence and the sound of its neighbours at them.

    Args:
        start, end: as the decoder found them.
        silent: of each frame of the speech.
        step: samples of a frame.
    """
    first, last = start // step, -(-end // step)
    runs = runs_of(silent[first:last])
    begin, stop = 0, last - first
    for a, b in runs:
        if (a == 0 and b >= _AT_EDGE) or (0 < a <= _NEAR and b - a >= _PAUSE):
            begin = int(b)
    for a, b in runs[::-1]:
        silence, at_edge = b - a, b == stop
        if a >= begin and silence >= (_AT_EDGE if at_edge else _PAUSE) and (at_edge or b >= stop - _NEAR):
            stop = int(a)
    if begin >= stop:
        return start, end  # all of it is silent
    return (start if begin == 0 else (first + begin) * step), (end if stop == last - first else (first + stop) * step)
