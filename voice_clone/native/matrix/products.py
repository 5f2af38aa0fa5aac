"""Rows of activations times a matrix in any of the forms in which it may be kept; see weights.py.

A step of few rows takes as long as reading the weights, so they are read once for all rows, as they are kept. The form
is known by the type of the array:

| array | one weight | times |
|---|---|---|
| float32 [O, I] | itself | float32 |
| uint16 [O, I] | the upper half of a float32 (bf16) | float32 |
| int8 [O, I] | times the scale of its group of 128 | int16 |
| uint8 [O, I / 2] | two: half a byte, less 8, times the scale of its group of 32 | int8 |

Activations that meet int8 are rounded to 16 bits, with one scale for each row; those that meet int4 to 8 bits, with one
for each group of the row: next to the rounding of the weights of that group theirs is small. The sums of a group are
exact. I is a multiple of what dots.py takes at once, O of a panel; zeros fill up. A row's result is the same, bit for
bit, whatever other rows there are.

Shapes: N rows, I inputs, O outputs.
"""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

import numpy as np
from llvmlite import ir
from numba import float32, int8, int16, int32, types
from numba.extending import intrinsic, overload, register_jitable

from voice_clone.native.matrix.dots import PANEL, SMALL_GROUP, panel, tile

BLOCK_BYTES = 128 << 10  # of weights that stay in a core's cache while rows pass by
FEW = 8  # rows


@intrinsic
def _bits(context, value):
    """float32 -> its bits, int32."""

    def code(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return int32(float32), code


@intrinsic
def _number(context, bits):
    """Bits, int32 -> float32."""

    def code(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return float32(int32), code


def width(weights):
    """I."""


@overload(width)
def _width_overload(weights):
    if weights.dtype == types.uint8:
        return lambda weights: 2 * weights.shape[1]
    return lambda weights: weights.shape[1]


def prepare(weights, x, prepared, scales):
    """Bring float32 rows x [N, inputs] to what `weights` are multiplied with, prepared [N, I], and its scales.

    There are N of them, with int4 [N, 2, I / 32], as `panel` takes them.
    """


@overload(prepare)
def _prepare_overload(weights, x, prepared, scales):
    return {types.uint8: _round_groups, types.int8: _round}.get(weights.dtype, _copy)


def _copy(weights, x, prepared, scales):
    for n in range(x.shape[0]):
        for i in range(x.shape[1]):
            prepared[n, i] = x[n, i]
        for i in range(x.shape[1], prepared.shape[1]):
            prepared[n, i] = float32(0)
        scales[n] = float32(1)


@register_jitable
def _largest(x):
    """The largest magnitude, or infinity or NaN if there is one; above zero."""
    bits = _bits(float32(1e-30))  # those of infinity and NaN are above all others
    for i in range(x.shape[0]):
        bits = max(bits, int32(_bits(x[i]) & int32(0x7FFFFFFF)))
    return _number(bits)


@register_jitable
def _rounded(x):
    """To the nearest int32."""
    return int32(np.floor(x + float32(0.5)))


def _round(weights, x, prepared, scales):
    for n in range(x.shape[0]):
        size = _largest(x[n])
        scales[n] = size / float32(32767)
        inverse = float32(32767) / size
        for i in range(x.shape[1]):
            prepared[n, i] = int16(_rounded(x[n, i] * inverse))
        for i in range(x.shape[1], prepared.shape[1]):
            prepared[n, i] = int16(0)


def _round_groups(weights, x, prepared, scales):
    count = prepared.shape[1] // SMALL_GROUP
    for n in range(x.shape[0]):
        for g in range(count):
            start = g * SMALL_GROUP
            rounded = prepared[n, start : start + SMALL_GROUP]
            if start + SMALL_GROUP <= x.shape[1]:
                scale, total = _round_group(x[n, start:], rounded, SMALL_GROUP)  # a number that the compiler knows
            else:
                scale, total = _round_group(x[n, start:], rounded, x.shape[1] - start)
                rounded[x.shape[1] - start :] = int8(0)
            scales[2 * n * count + g] = scale
            scales[(2 * n + 1) * count + g] = float32(-8 * total) * scale


@register_jitable
def _round_group(x, rounded, size):
    """The first `size` of a group; returns their scale and the sum of what they are rounded to."""
    largest = _largest(x[:size])
    inverse = float32(127) / largest
    total = int32(0)
    for i in range(size):
        value = _rounded(x[i] * inverse)
        rounded[i] = int8(value)
        total += value
    return largest / float32(127), total


def multiply(weights, groups, x, scales, first, last, out):
    """out[n, o] = weights[o] . x[n] for o in first..last - 1; x and scales as `prepare` made them."""


@overload(multiply)
def _multiply_overload(weights, groups, x, scales, first, last, out):
    return _by_panels() if weights.dtype == types.uint8 else _by_tiles(weights.dtype)


def _by_tiles(kind):
    wide = 1 if kind == types.int8 else 3  # outputs of a tile; int8 needs its registers for the sums of groups
    # A step of few rows waits for its weights; many rows compute with the same block of them, out of the cache. The
    # processor itself fetches what is read in one line, but not soon enough for int8.
    few, many, narrow, single = tile(wide, 4, ahead=True), tile(wide, 4), tile(1, 4), tile(1, 1, kind == types.int8)

    def product(weights, groups, x, scales, first, last, out):
        rows = x.shape[0]
        fours = rows - rows % 4
        block = wide * max(1, BLOCK_BYTES // (wide * weights.shape[1] * weights.itemsize))
        for start in range(first, last, block):
            stop = min(start + block, last)
            tiled = stop - (stop - start) % wide
            for n in range(0, fours, 4):
                for o in range(start, tiled, wide):
                    sums = few(weights, groups, x, o, n) if rows <= FEW else many(weights, groups, x, o, n)
                    for k in range(wide):
                        for r in range(4):
                            out[n + r, o + k] = sums[4 * k + r] * scales[n + r]
                for o in range(tiled, stop):
                    sums = narrow(weights, groups, x, o, n)
                    for r in range(4):
                        out[n + r, o] = sums[r] * scales[n + r]
            for n in range(fours, rows):
                for o in range(start, stop):
                    out[n, o] = single(weights, groups, x, o, n)[0] * scales[n]

    return product


def _by_panels():
    few, many, single = panel(4, ahead=True), panel(4), panel(1, ahead=True)

    def product(weights, groups, x, scales, first, last, out):
        rows, count = x.shape[0], groups.shape[1]
        fours = rows - rows % 4
        factors = scales[: rows * 2 * count].reshape(rows, 2, count)
        block = PANEL * max(1, BLOCK_BYTES // (PANEL * weights.shape[1]))
        for start in range(first - first % PANEL, last, block):
            stop = min(start + block, last)
            for n in range(0, fours, 4):
                for o in range(start, stop, PANEL):
                    if rows <= FEW:
                        sums = few(weights, groups, x, factors, o, n)
                    else:
                        sums = many(weights, groups, x, factors, o, n)
                    for k in range(max(0, first - o), min(PANEL, last - o)):
                        for r in range(4):
                            out[n + r, o + k] = sums[4 * k + r]
            for n in range(fours, rows):
                for o in range(start, stop, PANEL):
                    sums = single(weights, groups, x, factors, o, n)
                    for k in range(max(0, first - o), min(PANEL, last - o)):
                        out[n, o + k] = sums[k]

    return product
