"""Products of rows of activations with a matrix in any of its forms; see weights.py.

A product with few rows takes as long as reading the weights. So the weights are read once for all rows, in the form in
which they are stored. The type of the array tells the form:

| array | one weight | activations |
|---|---|---|
| float32 [O, I] | the number | float32 |
| uint16 [O, I] | the upper half of a float32 (bf16) | float32 |
| int8 [O, I] | the number times the scale of its group of 128 | int16 |
| uint8 [O, I / 2] | half a byte minus 8, times the scale of its group of 32 | int8 |

With int8 weights activations are rounded to 16 bits, with one scale for each row. With int4 weights they are rounded
to 8 bits, with one scale for each group of a row; this error is small beside that of rounding the weights. The sum of a
group is exact. I is a multiple of what dot_products.py requires and O, with int4, of INT4_PANEL; zeros pad both. The
result of a row is the same, bit for bit, whatever other rows there are.

Shapes: N rows, I inputs (padded), O outputs.
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import numpy as np
from numba import float32, int8, int16, int32, types
from numba.extending import overload, register_jitable

from voice_clone.native.matrix.dot_products import INT4_GROUP, INT4_PANEL, dot_tile, int4_tile
from voice_clone.native.primitives.arithmetic import float_bits, float_from_bits

BLOCK_BYTES = 128 << 10  # of weights that stay in a core's cache while rows pass by
FEW_ROWS = 8  # a product of at most so many rows waits for its weights


def padded_inputs(weights):
    """I, the length of a row of activations as `multiply` takes it."""


@overload(padded_inputs)
def _padded_inputs_overload(weights):
    if weights.dtype == types.uint8:
        return lambda weights: 2 * weights.shape[1]
    return lambda weights: weights.shape[1]


def prepare(weights, x, prepared, scales):
    """Round rows of activations to what `weights` are multiplied with.

    x: float32 [N, inputs]. prepared: [N, I], to be filled: rows of the type in the table above. scales: float32, to be
    filled: [N]; with int4 weights [N, 2, I / 32], flat, the `factors` of `int4_tile`.
    """


@overload(prepare)
def _prepare_overload(weights, x, prepared, scales):
    return {types.uint8: _round_groups, types.int8: _round_rows}.get(weights.dtype, _copy_rows)


def _copy_rows(weights, x, prepared, scales):
    for n in range(x.shape[0]):
        for i in range(x.shape[1]):
            prepared[n, i] = x[n, i]
        for i in range(x.shape[1], prepared.shape[1]):
            prepared[n, i] = float32(0)
        scales[n] = float32(1)


@register_jitable
def _largest(x):
    """The largest magnitude of [N], above zero; infinity or NaN if there is one."""
    bits = float_bits(float32(1e-30))  # the bits of infinity and NaN are above those of all numbers
    for i in range(x.shape[0]):
        bits = max(bits, int32(float_bits(x[i]) & int32(0x7FFFFFFF)))
    return float_from_bits(bits)


@register_jitable
def _rounded(x):
    """The nearest int32."""
    return int32(np.floor(x + float32(0.5)))


def _round_rows(weights, x, prepared, scales):
    for n in range(x.shape[0]):
        size = _largest(x[n])
        scales[n] = size / float32(32767)
        inverse = float32(32767) / size
        for i in range(x.shape[1]):
            prepared[n, i] = int16(_rounded(x[n, i] * inverse))
        for i in range(x.shape[1], prepared.shape[1]):
            prepared[n, i] = int16(0)


def _round_groups(weights, x, prepared, scales):
    count = prepared.shape[1] // INT4_GROUP
    for n in range(x.shape[0]):
        for g in range(count):
            start = g * INT4_GROUP
            rounded = prepared[n, start : start + INT4_GROUP]
            if start + INT4_GROUP <= x.shape[1]:
                scale, total = _round_group(x[n, start:], rounded, INT4_GROUP)  # a size that the compiler knows
            else:
                scale, total = _round_group(x[n, start:], rounded, x.shape[1] - start)
                rounded[x.shape[1] - start :] = int8(0)
            scales[2 * n * count + g] = scale
            scales[(2 * n + 1) * count + g] = float32(-8 * total) * scale


@register_jitable
def _round_group(x, rounded, size):
    """Round the first `size` numbers of a group. Returns their scale and the sum of the rounded numbers."""
    largest = _largest(x[:size])
    inverse = float32(127) / largest
    total = int32(0)
    for i in range(size):
        value = _rounded(x[i] * inverse)
        rounded[i] = int8(value)
        total += value
    return largest / float32(127), total


def multiply(weights, groups, x, scales, first, last, out):
    """out[n, o] = weights[o] . x[n] for o in first..last - 1.

    weights, groups: the arrays of a `Packed`. x, scales: as `prepare` filled them. out: float32 [N, O].
    """


@overload(multiply)
def _multiply_overload(weights, groups, x, scales, first, last, out):
    return _int4_multiply() if weights.dtype == types.uint8 else _multiply(weights.dtype)


def _multiply(kind):
    """`multiply` for fp32, bf16 and int8."""
    wide = 1 if kind == types.int8 else 3  # outputs of a tile; int8 needs its registers for the sums of groups
    # A product of few rows waits for its weights. A product of many rows computes with one block of weights, which
    # stays in the cache. The processor prefetches rows that are read in one direction, but not soon enough for int8.
    few, many = dot_tile(wide, 4, prefetch=True), dot_tile(wide, 4)
    narrow, single = dot_tile(1, 4), dot_tile(1, 1, prefetch=kind == types.int8)

    def product(weights, groups, x, scales, first, last, out):
        rows = x.shape[0]
        fours = rows - rows % 4
        block = wide * max(1, BLOCK_BYTES // (wide * weights.shape[1] * weights.itemsize))
        for start in range(first, last, block):
            stop = min(start + block, last)
            tiled = stop - (stop - start) % wide
            for n in range(0, fours, 4):
                for o in range(start, tiled, wide):
                    sums = few(weights, groups, x, o, n) if rows <= FEW_ROWS else many(weights, groups, x, o, n)
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


def _int4_multiply():
    """`multiply` for int4. A panel is computed as a whole; outputs outside first..last - 1 are not written."""
    few, many, single = int4_tile(4, prefetch=True), int4_tile(4), int4_tile(1, prefetch=True)

    def product(weights, groups, x, scales, first, last, out):
        rows, count = x.shape[0], groups.shape[1]
        fours = rows - rows % 4
        factors = scales[: rows * 2 * count].reshape(rows, 2, count)
        block = INT4_PANEL * max(1, BLOCK_BYTES // (INT4_PANEL * weights.shape[1]))
        for start in range(first - first % INT4_PANEL, last, block):
            stop = min(start + block, last)
            for n in range(0, fours, 4):
                for o in range(start, stop, INT4_PANEL):
                    if rows <= FEW_ROWS:
                        sums = few(weights, groups, x, factors, o, n)
                    else:
                        sums = many(weights, groups, x, factors, o, n)
                    for k in range(max(0, first - o), min(INT4_PANEL, last - o)):
                        for r in range(4):
                            out[n + r, o + k] = sums[4 * k + r]
            for n in range(fours, rows):
                for o in range(start, stop, INT4_PANEL):
                    sums = single(weights, groups, x, factors, o, n)
                    for k in range(max(0, first - o), min(INT4_PANEL, last - o)):
                        out[n, o + k] = sums[k]

    return product
