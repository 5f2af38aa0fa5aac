"""Times of a text's units out of the network's classes. Needs no torch.

Source of `repaired`: qwen-asr 0.0.6, `Qwen3ForceAlignProcessor.fix_timestamp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


def repaired(marks: Sequence[float]) -> list[int]:
    """Starts and ends in their order, of which no one falls behind the one before.

    The marks that do not belong to a longest sequence without a fall are replaced: one or two together by their nearer
    neighbour that does, more by numbers on a straight line between both neighbours.

    Args:
        marks: start and end of each unit, in milliseconds.

    Returns:
        Whole milliseconds, as many.
    """
    values = np.array(marks, np.float64)
    if not len(values):
        return []
    good = _longest_rise(values)
    result = values.tolist()
    for left, right in pairwise([-1, *good.tolist(), len(values)]):
        count = right - left - 1
        before = None if left < 0 else result[left]
        behind = None if right == len(values) else result[right]
        for place in range(1, count + 1):
            if before is None or behind is None:
                filled = behind if before is None else before
            elif count > 2:
                filled = before + (behind - before) / (count + 1) * place
            else:
                filled = before if place <= count + 1 - place else behind
            result[left + place] = filled
    return [int(each) for each in result]


def _longest_rise(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places of a longest sequence of numbers that never falls; of several the one that is found first."""
    lengths, before = np.ones(len(values), np.int64), np.full(len(values), -1)
    for place in range(1, len(values)):
        reached = np.where(values[:place] <= values[place], lengths[:place], 0)
        if (best := int(reached.argmax())) < place and reached[best]:
            lengths[place], before[place] = reached[best] + 1, best
    chain = [int(lengths.argmax())]
    while before[chain[-1]] >= 0:
        chain.append(int(before[chain[-1]]))
    return np.array(chain[::-1])


def widened(times: Sequence[int], total: float, step: float) -> list[tuple[float, float]]:
    """Start and end of each unit within a sound; units without a length get one from what is beside them.

    Units at one time share the gap before the next unit, at most a step each; if there is none, they share the time of
    the unit before them, else of the one behind.

    Args:
        times: of `repaired`.
        total: milliseconds of the sound.
        step: milliseconds from one class to the next.
    """
    spans = [(min(start, total), min(end, total)) for start, end in zip(times[::2], times[1::2], strict=True)]
    place = 0
    while place < len(spans):
        begin, (start, end) = place, spans[place]
        place += 1
        if start < end:
            continue
        while place < len(spans) and spans[place] == (start, end):
            place += 1
        behind = spans[place][0] if place < len(spans) else total
        if behind > start:
            _share(spans, begin, place, start, min(behind, start + step * (place - begin)))
        elif begin:
            _share(spans, begin - 1, place, spans[begin - 1][0], start)
        elif place < len(spans):
            place += 1
            _share(spans, begin, place, start, spans[place - 1][1])
    return spans


def _share(spans: list[tuple[float, float]], begin: int, end: int, start: float, stop: float) -> None:
    """Give the units from `begin` to `end` equal parts of a time."""
    borders = np.linspace(start, stop, end - begin + 1).tolist()
    spans[begin:end] = list(pairwise(borders))
