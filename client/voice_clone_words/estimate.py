"""When words are spoken, estimated where no engine says it: for any language, from the text and the pauses alone.

Each unit gets a share of the speech by its characters and one more. Where the text has punctuation inside, the longest
pauses of the speech are taken for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import regex
from numpy.typing import NDArray

from .loudness import FRAME, runs_of
from .units import Unit

PAUSE = 0.08
"""Seconds of silence at least that punctuation can be."""
_PACE = 15.0  # characters a second
_LEAST_SPOKEN = 1.0  # seconds from which a pace follows
_STOPS = regex.compile(r"[.,;:!?…—–。、，；：！？]['\"\p{Pe}\p{Pf}]*$")
_COUNTED = regex.compile(r"[\p{L}\p{N}]")


def estimate(units: Sequence[Unit], silent: NDArray[np.bool_], step: int, length: int) -> list[tuple[int, int]]:
    """Begin and end of each unit in samples: in order, without overlap, within the speech.

    Args:
        units: of the text.
        silent: of each frame of the speech, see `Loudness`.
        step: samples of a frame.
        length: samples of the speech.
    """
    if not units:
        return []
    loud = np.flatnonzero(~silent)
    first, last = (int(loud[0]), int(loud[-1]) + 1) if len(loud) else (0, len(silent))
    begin, end = min(first * step, length), min(last * step, length) if len(loud) else length
    weights = [1 + len(_COUNTED.findall(unit.text)) for unit in units]
    stops = [index + 1 for index, unit in enumerate(units[:-1]) if _STOPS.search(unit.text)]
    pauses = [(first + a, first + b) for a, b in runs_of(silent[first:last]) if (b - a) * FRAME >= PAUSE]
    if len(pauses) > len(stops):
        pauses = sorted(sorted(pauses, key=lambda run: run[0] - run[1])[: len(stops)])
    stops = _matched(stops, weights, pauses, first, last)
    edges = [(begin, 0), *((b * step, at) for (_, b), at in zip(pauses, stops, strict=True))]
    ends = [*((a * step, at) for (a, _), at in zip(pauses, stops, strict=True)), (end, len(units))]
    found: list[tuple[int, int]] = []
    for (start, here), (stop, there) in zip(edges, ends, strict=True):
        places = np.cumsum([0, *weights[here:there]]) * ((stop - start) / max(1, sum(weights[here:there]))) + start
        cuts = [round(float(place)) for place in places]
        found += pairwise(cuts)
    return found


def guess(units: Sequence[Unit], begin: int, rate: int, characters: int, seconds: float) -> list[tuple[int, int]]:
    """Begin and end of units in samples, whose sound is not known yet: at the pace of what was spoken so far.

    Args:
        units: what follows.
        begin: the sample at which they begin.
        rate: samples a second.
        characters, seconds: what was spoken so far.
    """
    pace = characters / seconds if seconds > _LEAST_SPOKEN else _PACE
    places = np.cumsum([0, *(len(unit.text) + 1 for unit in units)]) * (rate / pace) + begin
    return [*pairwise(round(float(place)) for place in places)]


def _matched(stops: list[int], weights: list[int], pauses: list[tuple[int, int]], first: int, last: int) -> list[int]:
    """For each pause the place in the text where it is: one of the stops, each at most once, in order; where there are
    more stops than pauses, those whose share of the text is nearest."""
    if len(stops) == len(pauses):
        return stops
    shares = np.concatenate([[0], np.cumsum(weights)]) / sum(weights)
    quiet, found = 0, []
    spoken = max(1, last - first - sum(b - a for a, b in pauses))
    for a, b in pauses:
        found.append((a - first - quiet) / spoken)
        quiet += b - a
    places = np.array(found)
    costs = np.array([0.0, *[np.inf] * len(places)])  # by the number of pauses that have a stop
    taken = np.zeros((len(stops), len(places)), np.bool_)  # whether this stop is the best so far for a pause
    for row, stop in zip(taken, stops, strict=True):
        with_stop = costs[:-1] + np.abs(places - shares[stop])
        row[:] = with_stop < costs[1:]
        costs[1:] = np.where(row, with_stop, costs[1:])
    matched: list[int] = []
    for row, stop in zip(taken[::-1], stops[::-1], strict=True):
        if len(matched) < len(places) and row[len(places) - len(matched) - 1]:
            matched.append(stop)
    return matched[::-1]
