"""The activation SiLU, bit for bit as torch computes it on a processor with AVX2 or wider.

The talker's text embeddings pass through it. With another rounding, codes could differ from those that torch's network
makes. torch's kernels use the exponential function of SLEEF (Shibata & Petrogalli 2020, `Sleef_expf` with an error of
at most 1 ULP): the reduction by multiples of ln 2, and a polynomial in Horner's form, of fused products and sums.
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import numpy as np
from numba import float32, int32

from voice_clone.native.kernels.arithmetic import float_from_bits, fma
from voice_clone.native.kernels.compilation import compiled

_LOG2_E = np.float32(1.442695040888963407359924681001892137426645954152985934135449406931)
_LN2_UPPER, _LN2_LOWER = np.float32(0.693145751953125), np.float32(1.428606765330187045e-06)
_C5, _C4, _C3, _C2, _C1 = (
    np.float32(each)
    for each in (
        0.000198527617612853646278381,
        0.00139304355252534151077271,
        0.00833336077630519866943359,
        0.0416664853692054748535156,
        0.166666671633720397949219,
    )
)
_LEAST, _MOST = np.float32(-104), np.float32(100)  # beyond which the result is 0 or infinity


@compiled
def _exponential(x):
    """e ** x of a float32."""
    if x < _LEAST:
        return float32(0)
    if x > _MOST:
        return float32(np.inf)
    if x != x:
        return x
    turns = np.rint(x * _LOG2_E)
    power = int32(turns)
    rest = fma(turns, -_LN2_UPPER, x)
    rest = fma(turns, -_LN2_LOWER, rest)
    series = fma(_C5, rest, _C4)
    series = fma(series, rest, _C3)
    series = fma(series, rest, _C2)
    series = fma(series, rest, _C1)
    series = fma(series, rest, float32(0.5))
    result = float32(1) + fma(rest * rest, series, rest)
    half = power >> 1  # in two steps: 2 ** power may be beyond the numbers of float32
    return result * float_from_bits(int32((half + 127) << 23)) * float_from_bits(int32((power - half + 127) << 23))


@compiled
def silu_in_place(x):
    """x / (1 + e ** -x) of float32 [N]."""
    for i in range(x.shape[0]):
        x[i] = x[i] / (float32(1) + _exponential(-x[i]))
