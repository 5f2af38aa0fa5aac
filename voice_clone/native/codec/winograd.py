"""Winograd's minimal filtering: dilated causal convolutions of `TAPS` taps with fewer multiplications.

The filter F(4, 7) computes a group of `OUTPUTS` = 4 outputs, which lie a dilation apart, from the `INPUTS` = 10 inputs
under them. The outputs are coefficients of the product of two polynomials, the inputs and the taps. Both polynomials
are evaluated at points. At a point their product is one multiplication for each pair of channels. So `PRODUCTS` = 11
multiplications replace 4 * 7. (S. Winograd, Arithmetic Complexity of Computations, 1980. For complex points: L. Meng
and J. Brothers, Efficient Winograd convolution via integer arithmetic, 2019.)

    inputs      x_0 ... x_9 of a channel, a dilation apart -> transformed inputs v_p, linear combinations of them
    products    m_p = sum over the channels of u_p * v_p; u_p are the transformed taps, computed once
    outputs     y_k = sum over the points of p ** k * m_p; the product of infinity is part of the last y only

The points are 0, infinity, pairs of opposite numbers, and i with its conjugate. Opposite points share the even and the
odd part of their transformed inputs. i and its conjugate take three products, by Gauss's multiplication of complex
numbers. Real points alone would need one product less, but their rounding errors are about four times as large.

A group of outputs never crosses the border of a frame, so the result is the same in chunks of any size. The groups of a
frame lie in blocks of `OUTPUTS` * dilation rows; one group begins at each of the block's first `dilation` rows. In the
last block of a frame groups have fewer outputs, and inputs after the frame count as zeros.
"""

from __future__ import annotations

import numpy as np

from voice_clone.native.arrays import Array

TAPS = 7
OUTPUTS = 4  # of a group
INPUTS = OUTPUTS + TAPS - 1  # of a group
PAIRS = (0.5, 1.0, 2.0)  # points, each with its opposite
PRODUCTS = INPUTS + 1


def groups_in_frame(rate: int, dilation: int) -> int:
    """The number of groups of outputs in a frame of `rate` rows."""
    blocks, rest = divmod(rate, OUTPUTS * dilation)
    return blocks * dilation + min(dilation, rest)


def _tap_transform() -> Array:
    real = np.array([0.0, *(sign * value for value in PAIRS for sign in (1, -1))])
    # The denominators of Lagrange's polynomials belong to the taps; the transformed inputs leave them out.
    distances = (real[:, None] - real + np.eye(len(real))).prod(axis=1) * (real**2 + 1)
    powers = real[:, None] ** np.arange(TAPS) / distances[:, None]
    powers_of_i = 1j ** np.arange(TAPS) / np.prod([-1 - value**2 for value in PAIRS])
    infinity = np.eye(TAPS)[-1]
    return np.vstack([powers, -powers_of_i.real, powers_of_i.imag, powers_of_i.real + powers_of_i.imag, infinity])


TAP_TRANSFORM = _tap_transform()
"""Turns a convolution's taps into the transformed taps: float64 [PRODUCTS, TAPS]."""


def transformed(weight: Array) -> Array:
    """The transformed taps of a weight, [O, C, TAPS] -> float32 [PRODUCTS, O, C].

    They are summed tap by tap, in this order on all processors.
    """
    sums = np.zeros((PRODUCTS, *weight.shape[:2]))
    for tap, column in enumerate(TAP_TRANSFORM.T):
        sums += column[:, None, None] * weight[..., tap]
    return sums.astype(np.float32)
