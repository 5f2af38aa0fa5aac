"""The exponential function of float32, and silu, in a form that the compiler makes vectors of, unlike the C library's.

Cody and Waite 1980: exp(x) = 2 ** n exp(r), with r within half of log 2, where a series does.
"""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

import math

import numpy as np
from numba import float32, int32
from numba.extending import register_jitable

from voice_clone.native.matrix.arithmetic import fma
from voice_clone.native.matrix.products import _number

LEAST, MOST = np.float32(-87.3), np.float32(88.3)  # of these results neither is 0 or infinity
_PER_LOG_2 = np.float32(1 / math.log(2))
_LOG_2 = np.float32(0.693359375)  # few bits, so that its multiples are exact
_LOG_2_REST = np.float32(math.log(2) - 0.693359375)
_SERIES = tuple(np.float32(1 / math.factorial(n)) for n in range(7, 1, -1))


@register_jitable
def exponential(x):
    """exp(x), relative error below 3e-7; beyond LEAST and MOST as there. Of NaN and of infinity NaN."""
    bounded = min(max(x, LEAST), MOST)
    n = np.floor(fma(bounded, _PER_LOG_2, float32(0.5)))
    r = fma(n, -_LOG_2_REST, fma(n, -_LOG_2, bounded))
    series = _SERIES[0]
    for coefficient in _SERIES[1:]:
        series = fma(series, r, coefficient)
    return fma(series, r * r, r + float32(1)) * _number(int32(int32(n) + 127) << 23) + (x - x)


@register_jitable
def silu(x):
    """x times its sigmoid."""
    return x / (float32(1) + exponential(-x))
