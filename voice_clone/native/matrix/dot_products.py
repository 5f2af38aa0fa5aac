"""Dot products of rows of a matrix with rows of activations, several of both at once, in LLVM's vectors.

A compiler that may choose the order of a sum chooses it by the code around the sum. Then the last bits of a stream's
values would depend on how many other streams are computed with it. Here the order of a sum is fixed: it is the same in
a tile of any size. With bf16 weights it depends on the width of a vector, see instructions.py.

The length of a row is a multiple of `WIDTH`; with int8 weights of `INT8_GROUP`, with int4 weights of `INT4_GROUP`.
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

from llvmlite import ir
from numba import float32, int64, types
from numba.core import cgutils
from numba.extending import intrinsic

from voice_clone.native.aligned import LINE
from voice_clone.native.instructions import INSTRUCTIONS
from voice_clone.native.primitives import vectors
from voice_clone.native.primitives.vectors import FLOAT, FLOATS, INT8, INT16, INT32, INTS, WIDTH, index

NARROW = 8  # numbers in a vector with fp32 and int8 weights: whole lines at once come from memory more slowly
INT8_GROUP = 128  # int8 weights that share a scale
INT4_GROUP = 32  # int4 weights that share a scale; the sum of more products would not fit 16 bits
INT4_PANEL = WIDTH  # outputs whose int4 weights are interleaved, one for each lane of a sum


def dot_tile(outputs, rows, prefetch=False):
    """An intrinsic for weights in fp32, bf16 or int8: the products of `outputs` rows of weights with `rows` rows of x.

    (weights, groups, x, o, n) -> a tuple of float32: the products of weights[o] with x[n], x[n + 1], ..., then those
    of weights[o + 1], and so on.

    weights: [O, I]; see products.py for the types. groups: float32 [O, I / 128], the scales of int8 weights; not read
    with other weights. x: [N, I], int16 with int8 weights, else float32. prefetch: fetch the weights of the next tile,
    because they are not in the processor's cache.
    """

    def typed(context, weights, groups, x, o, n):
        return types.UniTuple(float32, outputs * rows)(weights, groups, x, o, n), code

    def code(context, builder, signature, arguments):
        weights, groups, x = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
        )
        o, n = (
            context.cast(builder, value, kind, int64)
            for kind, value in zip(signature.args[3:], arguments[3:], strict=True)
        )
        inputs = cgutils.unpack_tuple(builder, weights.shape)[1]
        weight_rows = _rows(builder, weights.data, o, inputs, outputs)
        x_rows = _rows(builder, x.data, n, inputs, rows)
        if signature.args[0].dtype == types.int8:
            size = cgutils.unpack_tuple(builder, groups.shape)[1]
            scale_rows = _rows(builder, groups.data, o, size, outputs)
            sums = _sums_of_int8(builder, weight_rows, x_rows, scale_rows, inputs, prefetch)
        else:
            sums = _sums_of_floats(builder, signature.args[0].dtype, weight_rows, x_rows, inputs, prefetch)
        return context.make_tuple(builder, signature.return_type, [vectors.sum_lanes(builder, each) for each in sums])

    return intrinsic(typed)


def int4_tile(rows, prefetch=False):
    """An intrinsic for weights in int4: the products of `INT4_PANEL` rows of weights with `rows` rows of x.

    (weights, groups, x, factors, o, n) -> a tuple of float32, in the order of `dot_tile`. o is a multiple of
    INT4_PANEL.

    weights, groups: see weights.py. x: int8 [N, I]. factors: float32 [N, 2, I / 32]: for each group of a row of x its
    scale, and the number that corrects for the weights being stored without a sign. prefetch: see `dot_tile`.
    """

    def typed(context, weights, groups, x, factors, o, n):
        return types.UniTuple(float32, INT4_PANEL * rows)(weights, groups, x, factors, o, n), code

    def code(context, builder, signature, arguments):
        weights, groups, x, factors = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:4], arguments[:4], strict=True)
        )
        o, n = (
            context.cast(builder, value, kind, int64)
            for kind, value in zip(signature.args[4:], arguments[4:], strict=True)
        )
        count = cgutils.unpack_tuple(builder, groups.shape)[1]
        inputs = builder.mul(count, index(INT4_GROUP))
        panel = builder.gep(weights.data, [builder.mul(o, builder.sdiv(inputs, index(2)))])
        scales = builder.gep(groups.data, [builder.mul(o, count)])
        x_rows = _rows(builder, x.data, n, inputs, rows)
        factor_rows = _rows(builder, factors.data, n, builder.mul(count, index(2)), rows)
        sums = _sums_of_int4(builder, panel, scales, x_rows, factor_rows, count, prefetch)
        lanes = [builder.extract_element(total, INT32(lane)) for lane in range(INT4_PANEL) for total in sums]
        return context.make_tuple(builder, signature.return_type, lanes)

    return intrinsic(typed)


def _rows(builder, data, first, size, count):
    """Pointers to `count` rows of `size` numbers, from row `first` on."""
    return [builder.gep(data, [builder.mul(builder.add(first, index(k)), size)]) for k in range(count)]


def _sums_of_floats(builder, kind, weight_rows, x_rows, inputs, prefetch):
    """For each pair of rows a vector whose lanes add up to the product: fp32 or bf16 weights, float32 activations."""
    width = NARROW if kind == types.float32 else WIDTH
    floats = ir.VectorType(FLOAT, width)
    sums = [vectors.variable(builder, ir.Constant(floats, None)) for _ in weight_rows for _ in x_rows]
    with cgutils.for_range(builder, builder.sdiv(inputs, index(width))) as loop:
        at = builder.mul(loop.index, index(width))
        if prefetch:
            for row in weight_rows:
                vectors.prefetch(builder, row, builder.add(at, builder.mul(inputs, index(len(weight_rows)))))
        weights = [
            vectors.load(builder, row, at, floats) if kind == types.float32 else _load_bf16(builder, row, at)
            for row in weight_rows
        ]
        for r, row in enumerate(x_rows):
            value = vectors.load(builder, row, at, floats)
            for k, weight in enumerate(weights):
                vectors.accumulate(builder, sums[k * len(x_rows) + r], weight, value)
    return [builder.load(total) for total in sums]


def _load_bf16(builder, row, at):
    """WIDTH bf16, the upper halves of float32, as float32."""
    halves = vectors.load(builder, row, at, ir.VectorType(INT16, WIDTH))
    bits = builder.shl(builder.zext(halves, INTS), vectors.splat(INT32, 16, WIDTH))
    return builder.bitcast(bits, FLOATS)


def _sums_of_int8(builder, weight_rows, x_rows, scale_rows, inputs, prefetch):
    """For each pair of rows a vector whose lanes add up to the product: int8 weights, int16 activations.

    A group's sum is exact, in int32. It is multiplied by the scale of the group's weights.
    """
    floats, ints = ir.VectorType(FLOAT, NARROW), ir.VectorType(INT32, NARROW)
    sums = [vectors.variable(builder, ir.Constant(floats, None)) for _ in weight_rows for _ in x_rows]
    with cgutils.for_range(builder, builder.sdiv(inputs, index(INT8_GROUP))) as group:
        start = builder.mul(group.index, index(INT8_GROUP))
        parts = [ir.Constant(ints, None)] * len(sums)
        for step in range(0, INT8_GROUP, 2 * NARROW):
            at = builder.add(start, index(step))
            if prefetch and step % LINE == 0:
                for row in weight_rows:
                    vectors.prefetch(builder, row, builder.add(at, builder.mul(inputs, index(len(weight_rows)))))
            halves = ir.VectorType(INT16, 2 * NARROW)
            weights = [
                builder.sext(vectors.load(builder, row, at, ir.VectorType(INT8, 2 * NARROW)), halves)
                for row in weight_rows
            ]
            for r, row in enumerate(x_rows):
                value = vectors.load(builder, row, at, halves)
                for k, weight in enumerate(weights):
                    total = k * len(x_rows) + r
                    parts[total] = _add_dots_of_pairs(builder, parts[total], weight, value)
        for k, row in enumerate(scale_rows):
            scale = vectors.broadcast(builder, builder.load(builder.gep(row, [group.index])), NARROW)
            for r in range(len(x_rows)):
                total = k * len(x_rows) + r
                vectors.accumulate(builder, sums[total], scale, builder.sitofp(parts[total], floats))
    return [builder.load(total) for total in sums]


def _add_dots_of_pairs(builder, total, a, b):
    """total, int32, plus the products of a and b, twice as many int16 each, added in pairs of neighbours."""
    if INSTRUCTIONS.byte_dots:
        return _call(builder, f"llvm.x86.avx512.vpdpwssd.{32 * total.type.count}", total.type, total, a, b)
    # Processors have one instruction for products and the sums of pairs; the compiler finds it.
    wide = ir.VectorType(INT32, a.type.count)
    product = builder.mul(builder.sext(a, wide), builder.sext(b, wide))
    pairs = builder.add(vectors.every_other(builder, product, 0), vectors.every_other(builder, product, 1))
    return builder.add(total, pairs)


def _sums_of_int4(builder, panel, scales, x_rows, factor_rows, count, prefetch):
    """For each row of x a vector with the products of a panel's outputs: int4 weights, int8 activations.

    A group's sum is exact. It is multiplied by the scales of the group's weights and activations. A step takes 4 bytes
    of each output: four inputs in the lower halves, and the next four inputs in the upper halves.
    """
    sums = [vectors.variable(builder, ir.Constant(FLOATS, None)) for _ in x_rows]
    fours = ir.VectorType(INT8, 4 * WIDTH)
    nibble, four_bits = vectors.splat(INT8, 15, 4 * WIDTH), vectors.splat(INT8, 4, 4 * WIDTH)
    step, steps = 4 * INT4_PANEL, INT4_GROUP // 8
    with cgutils.for_range(builder, count) as group:
        first, start = (builder.mul(group.index, index(size)) for size in (INT4_GROUP, steps * step))
        parts = [_no_int4_products()] * len(x_rows)
        for k in range(steps):
            at = builder.add(start, index(k * step))
            if prefetch and k * step % LINE == 0:
                vectors.prefetch(builder, panel, builder.add(at, builder.mul(count, index(steps * step))))
            both = vectors.load(builder, panel, at, fours)
            halves = builder.and_(both, nibble), builder.lshr(both, four_bits)
            for r, row in enumerate(x_rows):
                for h, half in enumerate(halves):
                    four = builder.gep(row, [builder.add(first, index(8 * k + 4 * h))])
                    four = builder.load(builder.bitcast(four, INT32.as_pointer()), align=1)
                    four = builder.bitcast(vectors.broadcast(builder, four), fours)
                    parts[r] = _add_int4_products(builder, parts[r], half, four)
        scale = _load_bf16(builder, scales, builder.mul(group.index, index(INT4_PANEL)))
        for r, row in enumerate(factor_rows):
            factor, offset = (
                vectors.broadcast(builder, builder.load(builder.gep(row, [place])))
                for place in (group.index, builder.add(group.index, count))
            )
            part = builder.sitofp(_int4_products(builder, parts[r]), FLOATS)
            value = vectors.multiply_add(builder, part, factor, offset)
            vectors.accumulate(builder, sums[r], scale, value)
    return [builder.load(total) for total in sums]


def _no_int4_products():
    """The products of no input: an int32 for each output, or two int16, which the products of a group fit."""
    kind = INTS if INSTRUCTIONS.byte_dots else ir.VectorType(INT16, 2 * WIDTH)
    return ir.Constant(kind, None)


def _add_int4_products(builder, total, a, b):
    """`total` plus the products of a, uint8 below 16, with b, int8: four neighbours belong to an output."""
    if INSTRUCTIONS.byte_dots:
        return _call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * WIDTH}", total.type, total, a, b)
    if INSTRUCTIONS.byte_pairs:  # the compiler does not find it
        name = "avx512.pmaddubs.w.512" if WIDTH == 16 else "avx2.pmadd.ub.sw"
        return builder.add(total, _call(builder, f"llvm.x86.{name}", total.type, a, b))
    wide = ir.VectorType(INT16, a.type.count)
    product = builder.mul(builder.zext(a, wide), builder.sext(b, wide))
    pairs = builder.add(vectors.every_other(builder, product, 0), vectors.every_other(builder, product, 1))
    return builder.add(total, pairs)


def _int4_products(builder, total):
    """The sums of `_add_int4_products` as one int32 for each output."""
    if INSTRUCTIONS.byte_dots:
        return total
    wide = builder.sext(total, ir.VectorType(INT32, total.type.count))
    return builder.add(vectors.every_other(builder, wide, 0), vectors.every_other(builder, wide, 1))


def _call(builder, name, result, *arguments):
    """An instruction of the processor."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)
