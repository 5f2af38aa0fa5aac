"""Dot products of fp32 rows of a matrix with rows of activations, several of both at once, in LLVM's vectors.

A compiler that may choose the order of a sum chooses it by the code around the sum. Then the last bits of a stream's
values would depend on how many other streams are computed with it. Here the order of a sum is fixed: it is the same in
a tile of any size.

The length of a row is a multiple of `NARROW`.
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

from llvmlite import ir
from numba import float32, int64, types
from numba.core import cgutils
from numba.extending import intrinsic

from voice_clone.native import vectors
from voice_clone.native.vectors import FLOAT, index

NARROW = 8  # numbers in a vector: whole lines at once come from memory more slowly


def dot_tile(outputs, rows, prefetch=False):
    """An intrinsic: the products of `outputs` rows of weights with `rows` rows of x.

    (weights, x, o, n) -> a tuple of float32: the products of weights[o] with x[n], x[n + 1], ..., then those of
    weights[o + 1], and so on.

    weights: float32 [O, I]. x: float32 [N, I]. prefetch: fetch the weights of the next tile, because they are not in
    the processor's cache.
    """

    def typed(context, weights, x, o, n):
        return types.UniTuple(float32, outputs * rows)(weights, x, o, n), code

    def code(context, builder, signature, arguments):
        weights, x = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:2], arguments[:2], strict=True)
        )
        o, n = (
            context.cast(builder, value, kind, int64)
            for kind, value in zip(signature.args[2:], arguments[2:], strict=True)
        )
        inputs = cgutils.unpack_tuple(builder, weights.shape)[1]
        weight_rows = vectors.rows(builder, weights.data, o, inputs, outputs)
        x_rows = vectors.rows(builder, x.data, n, inputs, rows)
        sums = _sums(builder, weight_rows, x_rows, inputs, prefetch)
        return context.make_tuple(builder, signature.return_type, [vectors.sum_lanes(builder, each) for each in sums])

    return intrinsic(typed)


def _sums(builder, weight_rows, x_rows, inputs, prefetch):
    """For each pair of rows a vector whose lanes add up to the product."""
    floats = ir.VectorType(FLOAT, NARROW)
    sums = [vectors.variable(builder, ir.Constant(floats, None)) for _ in weight_rows for _ in x_rows]
    with cgutils.for_range(builder, builder.sdiv(inputs, index(NARROW))) as loop:
        at = builder.mul(loop.index, index(NARROW))
        if prefetch:
            for row in weight_rows:
                vectors.prefetch(builder, row, builder.add(at, builder.mul(inputs, index(len(weight_rows)))))
        weights = [vectors.load(builder, row, at, floats) for row in weight_rows]
        for r, row in enumerate(x_rows):
            value = vectors.load(builder, row, at, floats)
            for k, weight in enumerate(weights):
                vectors.accumulate(builder, sums[k * len(x_rows) + r], weight, value)
    return [builder.load(total) for total in sums]
