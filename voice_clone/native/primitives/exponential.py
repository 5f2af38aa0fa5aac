"""The exponential function of float32, and silu.

The compiler can vectorise this form, unlike a call of the C library's `expf`.

W. J. Cody and W. Waite, Software Manual for the Elementary Functions, 1980: exp(x) = 2 ** n * exp(r), where r lies
within log(2) / 2 of zero and exp(r) is a short series.
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import math

import numpy as np
from numba import float32, int32
from numba.extending import register_jitable

from voice_clone.native.primitives.arithmetic import float_from_bits, fma

LOWEST, HIGHEST = np.float32(-87.3), np.float32(88.3)  # between them a result is neither 0 nor infinity
_PER_LOG_2 = np.float32(1 / math.log(2))
_LOG_2 = np.float32(0.693359375)  # it has few bits, so its multiples are exact
_LOG_2_REST = np.float32(math.log(2) - 0.693359375)
_SERIES = tuple(np.float32(1 / math.factorial(n)) for n in range(7, 1, -1))


@register_jitable
def exponential(x):
    """exp(x) of a float32, relative error below 3e-7.

    Below `LOWEST` and above `HIGHEST` the result is that at the limit. NaN and both infinities give NaN.
    """
    bounded = min(max(x, LOWEST), HIGHEST)
    n = np.floor(fma(bounded, _PER_LOG_2, float32(0.5)))
    r = fma(n, -_LOG_2_REST, fma(n, -_LOG_2, bounded))
    series = _SERIES[0]
    for coefficient in _SERIES[1:]:
        series = fma(series, r, coefficient)
    return fma(series, r * r, r + float32(1)) * float_from_bits(int32(int32(n) + 127) << 23) + (x - x)


@register_jitable
def silu(x):
    """x * sigmoid(x) of a float32."""
    return x / (float32(1) + exponential(-x))
