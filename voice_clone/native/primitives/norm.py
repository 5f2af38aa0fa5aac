"""Root-mean-square norm (Zhang and Sennrich 2019)."""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import math

from numba import float32

from voice_clone.native.compilation import compiled
from voice_clone.native.primitives.arithmetic import dot


@compiled
def rms_norm(x, weight, eps, out):
    """Root-mean-square norm of float32 rows x [N, C], weight [C] -> out [N, C]."""
    size = x.shape[1]
    for n in range(x.shape[0]):
        factor = float32(1) / math.sqrt(dot(x[n], x[n]) / float32(size) + eps)
        for i in range(size):
            out[n, i] = weight[i] * (x[n, i] * factor)
