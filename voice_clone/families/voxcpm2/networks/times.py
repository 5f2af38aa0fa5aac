"""The rows of the times of Euler's method, and how far its steps go: the same for all frames.

The official code computes them in the dtype of its weights, and its model has learned from such numbers: in bf16 they
are others. The host computes them for every device, in fp32; for bf16 it rounds the result of each operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from voice_clone.families.voxcpm2.options import LEAST_STEPS, MOST_STEPS
from voice_clone.native.matrix.rounding import in_bf16

TIME_SCALE, LONGEST = 1000, 10_000  # of the time's embedding

Floats = npt.NDArray[np.float32]
Round = Callable[[Floats], Floats]


class TimeWeights(NamedTuple):
    """Two linear layers, float32: weights [C, C] and biases [C]."""

    first: Floats
    first_bias: Floats
    second: Floats
    second_bias: Floats


def time_table(time: TimeWeights, delta: TimeWeights, bf16: bool) -> tuple[Floats, Floats]:
    """For each number of steps n and each of its calls, n - 1: the row of the time, and how far a step goes.

    Args:
        time, delta: the layers behind the embeddings of the time, and of the constant time between two steps.

    Returns:
        float32 [MOST_STEPS + 1, MOST_STEPS - 1, C] and [MOST_STEPS + 1, MOST_STEPS - 1], zeros where a number of steps
        has no such call.
    """
    kept: Round = in_bf16 if bf16 else np.ascontiguousarray
    size = len(time.first_bias)
    rows = np.zeros((MOST_STEPS + 1, MOST_STEPS - 1, size), np.float32)
    lengths = np.zeros((MOST_STEPS + 1, MOST_STEPS - 1), np.float32)
    weights = [TimeWeights(*map(kept, each)) for each in (time, delta)]
    still = _mlp(weights[1], _embedded(np.zeros(1, np.float32), size, kept), kept)
    for steps in range(LEAST_STEPS, MOST_STEPS + 1):
        times, lengths[steps, : steps - 1] = _schedule(steps, kept)
        rows[steps, : steps - 1] = kept(_mlp(weights[0], _embedded(times, size, kept), kept) + still)
    return rows, lengths


def _schedule(steps: int, kept: Round) -> tuple[Floats, Floats]:
    """The times of the calls, and how far each goes, [steps - 1] each. The first step makes none: it stands still."""
    places, step = np.arange(steps + 1, dtype=np.float32), kept(np.array([-1 / steps], np.float32))
    first, last = kept(1 + kept(step * places)), kept(-kept(step * (steps - places)))
    span = np.where(places < (steps + 1) // 2, first, last)  # as torch computes `linspace`
    turned = kept(np.cos(kept(np.float32(math.pi / 2) * span)))
    span = kept(span + kept(kept(turned - 1) + span))
    time, length = span[:1], kept(span[:1] - span[1:2])
    times, lengths = [], []
    for number in range(1, steps + 1):
        times.append(time)
        lengths.append(length)
        time = kept(time - length)  # rounded again and again, as official
        if number < steps:
            length = kept(time - span[number + 1 : number + 2])
    return np.concatenate(times[1:]), np.concatenate(lengths[1:])


def _embedded(times: Floats, size: int, kept: Round) -> Floats:
    """[N] -> sines and cosines [N, size]."""
    half = size // 2
    places = kept(np.arange(half, dtype=np.float32))
    frequencies = kept(np.exp(kept(places * np.float32(-(math.log(LONGEST) / (half - 1))))))
    angles = kept(kept(TIME_SCALE * times[:, None]) * frequencies)
    return kept(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))


def _mlp(weights: TimeWeights, x: Floats, kept: Round) -> Floats:
    hidden = kept(x @ weights.first.T + weights.first_bias)
    hidden = kept((hidden / (1 + np.exp(-hidden.astype(np.float64)))).astype(np.float32))
    return kept(hidden @ weights.second.T + weights.second_bias)
