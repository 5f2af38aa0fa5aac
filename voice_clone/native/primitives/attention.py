"""Scaled-dot-product attention of one query."""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import math

import numpy as np
from numba import float32

from voice_clone.native.compilation import compiled
from voice_clone.native.primitives.arithmetic import dot, total, weighted_sum
from voice_clone.native.primitives.exponential import exponential


@compiled
def attend(query, keys, values, length, scores, out):
    """One query [D] attends to the first `length` of the keys and values [S, D] -> out [D].

    All arrays are float32. `scores` is memory for `length` numbers.
    """
    size = query.shape[0]
    scale = float32(1) / math.sqrt(float32(size))
    largest = float32(-np.inf)
    for s in range(length):
        scores[s] = dot(query, keys[s]) * scale
        largest = max(largest, scores[s])
    for s in range(length):
        scores[s] = exponential(scores[s] - largest)
    weighted_sum(scores, values, length, out)
    part = float32(1) / total(scores[:length])
    for i in range(size):
        out[i] *= part
