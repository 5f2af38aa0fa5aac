"""A draw of one code from logits, as native code: what sampling.py does, for one row.

Codes are ordered by how far their logits lie below the largest: such a number's bits, read as an integer, have its
order, so the limits that top-k and top-p set are found by halving, and nothing is sorted. Of codes that are exactly
alike at the limit of top-p all stay.
"""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

import numpy as np
from numba import float32, float64, int32, int64, njit

from voice_clone.native.matrix.arithmetic import total, total_from
from voice_clone.native.matrix.products import _bits
from voice_clone.native.transformer.exponential import LEAST, exponential
from voice_clone.native.transformer.kernels import _OPTIONS

_INFINITE = np.int32(0x7F800000)  # infinity's bits, above those of all numbers


@njit(**_OPTIONS)
def is_finite(row):
    """Whether all numbers are."""
    largest = int32(0)
    for i in range(row.shape[0]):
        largest = max(largest, int32(_bits(row[i]) & int32(0x7FFFFFFF)))
    return largest < _INFINITE


@njit(**_OPTIONS)
def _within(below, limit):
    """How many codes there are up to a limit."""
    count = 0
    for i in range(below.shape[0]):
        count += below[i] <= limit
    return count


@njit(**_OPTIONS)
def _weigh(below, limit, weights):
    """Unnormalised probabilities of the codes so far below; 0 beyond the limit."""
    for i in range(below.shape[0]):
        weights[i] = exponential(-weights[i]) if below[i] <= limit and weights[i] < -LEAST else float32(0)


@njit(**_OPTIONS)
def draw(logits, knobs, uniform, below, weights):
    """The code that a row of logits [V] gives.

    Args:
        logits: float32; if they are not finite, some code comes out.
        knobs: do_sample, temperature, top_k, top_p; see sampling.py.
        uniform: float64 in [0, 1).
        below, weights: memory, int32 and float32 [V].
    """
    best, largest = int64(0), logits[0]
    for i in range(logits.shape[0]):
        if logits[i] > largest:
            best, largest = i, logits[i]
    if knobs[0] == 0:
        return best
    for i in range(logits.shape[0]):
        weights[i] = abs((logits[i] - largest) / knobs[1])
        below[i] = _bits(weights[i])
    limit, k = _INFINITE, int64(knobs[2])
    if 0 < k < logits.shape[0]:  # the least limit with k codes
        least = int32(-1)
        while limit - least > 1:
            middle = int32(least + (limit - least) // 2)
            if _within(below, middle) < k:
                least = middle
            else:
                limit = middle
    _weigh(below, limit, weights)
    if knobs[3] < 1:  # the greatest limit from which on there is more than what top-p leaves out
        rest = (float32(1) - knobs[3]) * total(weights)
        least, beyond = int32(0), int32(limit + 1)
        while beyond - least > 1:
            middle = int32(least + (beyond - least) // 2)
            if total_from(weights, below, middle) > rest:
                least = middle
            else:
                beyond = middle
        limit = least
    whole = float64(0)
    for i in range(logits.shape[0]):
        if below[i] <= limit:
            whole += float64(weights[i])
    target, reached, last = uniform * whole, float64(0), best
    for i in range(logits.shape[0]):
        if below[i] <= limit and weights[i] > 0:
            reached += float64(weights[i])
            last = i
            if reached > target:
                break
    return last
