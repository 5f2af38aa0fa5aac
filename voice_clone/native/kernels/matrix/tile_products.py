"""Products of a tile of a matrix with rows of activations, several of both at once, in LLVM's vectors.

A compiler that may choose the order of a sum chooses it by the code around the sum. Then the last bits of a stream's
values would depend on how many other streams are computed with it. Here the order of a sum is fixed: it is the same in
a tile of any size.

A tile of fp32 is some rows of a matrix, whose length is a multiple of `NARROW`. In the other forms it is some panels. A
panel is `PANEL` outputs whose weights are interleaved, so that each lane of a vector is the sum of one output; see
weights.py. The inputs are added one after the other, in pairs or in fours. How a pair is added depends on the
processor, see instructions.py.
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

from llvmlite import ir
from numba import float32, int64, types
from numba.core import cgutils
from numba.extending import intrinsic

from voice_clone.native.instructions import INSTRUCTIONS
from voice_clone.native.kernels import vectors
from voice_clone.native.kernels.vectors import FLOAT, FLOATS, INT8, INT16, INT32, INTS, index
from voice_clone.native.sizes import INT4_GROUP, INT8_GROUP, LINE, PANEL, WIDTH

NARROW = 8  # numbers in a vector: whole lines at once come from memory more slowly


def dot_tile(outputs, rows, prefetch=False):
    """An intrinsic for weights in fp32: the products of `outputs` rows of weights with `rows` rows of x.

    (weights, x, o, n) -> a tuple of float32: the products of weights[o] with x[n], x[n + 1], ..., then those of
    weights[o + 1], and so on.

    weights: float32 [O, I], or int16, the upper halves of float32. x: float32 [N, I]. prefetch: fetch the weights of
    the next tile, because they are not in the processor's cache.
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
        read = _load_floats if signature.args[0].dtype == types.float32 else _load_bf16
        sums = _sums(builder, read, weight_rows, x_rows, inputs, prefetch)
        return context.make_tuple(builder, signature.return_type, [vectors.sum_lanes(builder, each) for each in sums])

    return intrinsic(typed)


def _sums(builder, read, weight_rows, x_rows, inputs, prefetch):
    """For each pair of rows a vector whose lanes add up to the product. `read` loads weights."""
    floats = ir.VectorType(FLOAT, NARROW)
    sums = [vectors.variable(builder, ir.Constant(floats, None)) for _ in weight_rows for _ in x_rows]
    with cgutils.for_range(builder, builder.sdiv(inputs, index(NARROW))) as loop:
        at = builder.mul(loop.index, index(NARROW))
        if prefetch:
            for row in weight_rows:
                vectors.prefetch(builder, row, builder.add(at, builder.mul(inputs, index(len(weight_rows)))))
        weights = [read(builder, row, at, NARROW) for row in weight_rows]
        for r, row in enumerate(x_rows):
            value = _load_floats(builder, row, at, NARROW)
            for k, weight in enumerate(weights):
                vectors.accumulate(builder, sums[k * len(x_rows) + r], weight, value)
    return [builder.load(total) for total in sums]


AHEAD = 4096  # bytes, how far ahead weights are prefetched


def panel_tile(panels, rows, prefetch=False):
    """An intrinsic for weights in bf16, int8 or int4: the products of some panels with `rows` rows of x.

    (weights, groups, x, scales, out, o, n, first, last) -> None. It writes out[n, o], out[n, o + 1], ...,
    out[n + 1, o], ..., but only those outputs that are at least `first` and below `last`.

    weights, groups: see weights.py. x, scales: see products.py. out: float32 [N, outputs]. o: a multiple of PANEL.
    prefetch: fetch weights before they are needed, because they are not in the processor's cache.
    """

    def typed(context, weights, groups, x, scales, out, o, n, first, last):
        return types.none(weights, groups, x, scales, out, o, n, first, last), code

    def code(context, builder, signature, arguments):
        weights, groups, x, scales, out = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:5], arguments[:5], strict=True)
        )
        o, n, first, last = (
            context.cast(builder, value, kind, int64)
            for kind, value in zip(signature.args[5:], arguments[5:], strict=True)
        )
        kind, rounded = (signature.args[place].dtype for place in (0, 2))
        size, count, inputs, outputs = (
            cgutils.unpack_tuple(builder, array.shape)[1] for array in (weights, groups, x, out)
        )
        places = [builder.add(o, index(p * PANEL)) for p in range(panels)]
        panel_rows = [builder.gep(weights.data, [builder.mul(place, size)]) for place in places]
        scale_rows = [builder.gep(groups.data, [builder.mul(place, count)]) for place in places]
        x_rows = vectors.rows(builder, x.data, n, inputs, rows)
        ahead = AHEAD // kind.bitwidth * 8 if prefetch else None
        if kind == types.uint16 and rounded == types.uint16:
            sums = _sums_of_bf16_dots(builder, panel_rows, x_rows, inputs, ahead)
        elif kind == types.uint16:
            sums = _sums_of_bf16(builder, panel_rows, x_rows, inputs, ahead)
        elif kind == types.int8:
            sums = _sums_of_int8(builder, panel_rows, x_rows, scale_rows, count, ahead)
            for r in range(rows):
                scale = builder.load(builder.gep(scales.data, [builder.add(n, index(r))]))
                scale = vectors.broadcast(builder, scale)
                for p in range(panels):
                    sums[p * rows + r] = builder.fmul(sums[p * rows + r], scale)
        else:
            assert kind == types.uint8, f"no products are written for weights in {kind}"  # int4
            factor_rows = vectors.rows(builder, scales.data, n, builder.mul(count, index(2)), rows)
            sums = _sums_of_int4(builder, panel_rows, x_rows, scale_rows, factor_rows, count, ahead)
        out_rows = vectors.rows(builder, out.data, n, outputs, rows)
        end = builder.add(o, index(panels * PANEL))
        whole = builder.and_(builder.icmp_signed("<=", first, o), builder.icmp_signed("<=", end, last))
        with builder.if_else(whole) as (all_, some):
            with all_:
                for p, place in enumerate(places):
                    for r, row in enumerate(out_rows):
                        vectors.store(builder, row, place, sums[p * rows + r])
            with some:
                for p, place in enumerate(places):
                    with cgutils.for_range(builder, index(PANEL)) as lane:
                        at = builder.add(place, lane.index)
                        wanted = builder.icmp_signed("<=", first, at), builder.icmp_signed("<", at, last)
                        with builder.if_then(builder.and_(*wanted)):
                            for r, row in enumerate(out_rows):
                                value = builder.extract_element(sums[p * rows + r], lane.index)
                                builder.store(value, builder.gep(row, [at]))
        return context.get_dummy_value()

    return intrinsic(typed)


def _zeros(builder, count, kind=FLOATS):
    return [vectors.variable(builder, ir.Constant(kind, None)) for _ in range(count)]


def _fetch(builder, panels, at, ahead):
    """Fetch what lies so many numbers behind a place in each panel, if that is asked for."""
    if ahead is not None:
        for panel in panels:
            vectors.prefetch(builder, panel, builder.add(at, index(ahead)))


def _broadcast_bits(builder, row, at, kind):
    """32 bits of activations from a place on, in each lane of a vector of `kind`."""
    bits = builder.load(builder.bitcast(builder.gep(row, [at]), INT32.as_pointer()), align=1)
    return builder.bitcast(vectors.broadcast(builder, bits), kind)


def _sums_of_bf16(builder, panels, x_rows, inputs, ahead):
    """For each panel and row a vector of products: bf16 weights, which are made float32, and float32 activations."""
    sums = _zeros(builder, len(panels) * len(x_rows))
    with cgutils.for_range(builder, builder.sdiv(inputs, index(2))) as pair:
        at, first = builder.mul(pair.index, index(2 * PANEL)), builder.mul(pair.index, index(2))
        _fetch(builder, panels, at, ahead)
        both = [vectors.load(builder, panel, at, INTS) for panel in panels]
        low = [builder.shl(each, vectors.splat(INT32, 16, PANEL)) for each in both]
        high = [builder.and_(each, vectors.splat(INT32, -1 << 16, PANEL)) for each in both]
        for step, halves in enumerate((low, high)):
            halves = [builder.bitcast(each, FLOATS) for each in halves]
            for r, row in enumerate(x_rows):
                value = builder.load(builder.gep(row, [builder.add(first, index(step))]))
                value = vectors.broadcast(builder, value)
                for p, weight in enumerate(halves):
                    vectors.accumulate(builder, sums[p * len(x_rows) + r], weight, value)
    return [builder.load(total) for total in sums]


def _sums_of_bf16_dots(builder, panels, x_rows, inputs, ahead):
    """The same with bf16 activations, by the processor's dot products of pairs."""
    sums = _zeros(builder, len(panels) * len(x_rows))
    pairs = ir.VectorType(vectors.BFLOAT, 2 * PANEL)
    with cgutils.for_range(builder, builder.sdiv(inputs, index(2))) as pair:
        at, first = builder.mul(pair.index, index(2 * PANEL)), builder.mul(pair.index, index(2))
        _fetch(builder, panels, at, ahead)
        weights = [builder.bitcast(vectors.load(builder, panel, at, INTS), pairs) for panel in panels]
        for r, row in enumerate(x_rows):
            value = _broadcast_bits(builder, row, first, pairs)
            for p, weight in enumerate(weights):
                total = sums[p * len(x_rows) + r]
                name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * PANEL}"
                builder.store(_call(builder, name, FLOATS, builder.load(total), weight, value), total)
    return [builder.load(total) for total in sums]


def _sums_of_int8(builder, panels, x_rows, scale_rows, count, ahead):
    """For each panel and row a vector of products: int8 weights, int16 activations.

    A group's sum is exact, in int32. It is multiplied by the scale of the group's weights.
    """
    sums = _zeros(builder, len(panels) * len(x_rows))
    parts = _zeros(builder, len(sums), INTS)
    bytes_, pairs = ir.VectorType(INT8, 2 * PANEL), ir.VectorType(INT16, 2 * PANEL)
    with cgutils.for_range(builder, count) as group:
        for part in parts:
            builder.store(ir.Constant(INTS, None), part)
        start = builder.mul(group.index, index(INT8_GROUP))
        with cgutils.for_range(builder, index(INT8_GROUP // 4)) as step:  # two pairs: a line, if a vector is one
            for pair in range(2):
                first = builder.add(start, builder.add(builder.mul(step.index, index(4)), index(2 * pair)))
                at = builder.mul(first, index(PANEL))
                if pair == 0:
                    _fetch(builder, panels, at, ahead)
                weights = [builder.sext(vectors.load(builder, panel, at, bytes_), pairs) for panel in panels]
                for r, row in enumerate(x_rows):
                    value = _broadcast_bits(builder, row, first, pairs)
                    for p, weight in enumerate(weights):
                        part = parts[p * len(x_rows) + r]
                        builder.store(_add_dots_of_pairs(builder, builder.load(part), weight, value), part)
        for p, row in enumerate(scale_rows):
            scale = vectors.load(builder, row, builder.mul(group.index, index(PANEL)), FLOATS)
            for r in range(len(x_rows)):
                total = p * len(x_rows) + r
                vectors.accumulate(builder, sums[total], scale, builder.sitofp(builder.load(parts[total]), FLOATS))
    return [builder.load(total) for total in sums]


def _add_dots_of_pairs(builder, total, a, b):
    """total, int32, plus the products of a and b, twice as many int16 each, added in pairs of neighbours."""
    if INSTRUCTIONS.byte_dots:
        return _call(builder, f"llvm.x86.avx512.vpdpwssd.{32 * PANEL}", total.type, total, a, b)
    # Processors have one instruction for products and the sums of pairs; the compiler finds it.
    wide = ir.VectorType(INT32, a.type.count)
    product = builder.mul(builder.sext(a, wide), builder.sext(b, wide))
    pairs = builder.add(vectors.every_other(builder, product, 0), vectors.every_other(builder, product, 1))
    return builder.add(total, pairs)


def _sums_of_int4(builder, panels, x_rows, scale_rows, factor_rows, count, ahead):
    """For each panel and row a vector of products: int4 weights, int8 activations.

    A group's sum is exact. It is multiplied by the scales of the group's weights and activations. A step takes 4 bytes
    of each output: four inputs in the lower halves, and the next four inputs in the upper halves.
    """
    sums = _zeros(builder, len(panels) * len(x_rows))
    fours = ir.VectorType(INT8, 4 * PANEL)
    nibble, four_bits = vectors.splat(INT8, 15, 4 * PANEL), vectors.splat(INT8, 4, 4 * PANEL)
    step, steps = 4 * PANEL, INT4_GROUP // 8
    with cgutils.for_range(builder, count) as group:
        first, start = (builder.mul(group.index, index(size)) for size in (INT4_GROUP, steps * step))
        parts = [_no_int4_products()] * len(sums)
        for k in range(steps):
            at = builder.add(start, index(k * step))
            if k * step % LINE == 0:
                _fetch(builder, panels, at, ahead)
            both = [vectors.load(builder, panel, at, fours) for panel in panels]
            halves = [builder.and_(each, nibble) for each in both], [builder.lshr(each, four_bits) for each in both]
            for r, row in enumerate(x_rows):
                for h, half in enumerate(halves):
                    four = _broadcast_bits(builder, row, builder.add(first, index(8 * k + 4 * h)), fours)
                    for p, weight in enumerate(half):
                        total = p * len(x_rows) + r
                        parts[total] = _add_int4_products(builder, parts[total], weight, four)
        scales = [_load_bf16(builder, row, builder.mul(group.index, index(PANEL)), PANEL) for row in scale_rows]
        for r, row in enumerate(factor_rows):
            factor, offset = (
                vectors.broadcast(builder, builder.load(builder.gep(row, [place])))
                for place in (group.index, builder.add(group.index, count))
            )
            for p, scale in enumerate(scales):
                total = p * len(x_rows) + r
                part = builder.sitofp(_int4_products(builder, parts[total]), FLOATS)
                vectors.accumulate(builder, sums[total], scale, vectors.multiply_add(builder, part, factor, offset))
    return [builder.load(total) for total in sums]


def _load_floats(builder, row, at, size):
    """A vector of so many float32."""
    return vectors.load(builder, row, at, ir.VectorType(FLOAT, size))


def _load_bf16(builder, row, at, size):
    """A vector of so many bf16, the upper halves of float32, as float32."""
    halves = vectors.load(builder, row, at, ir.VectorType(INT16, size))
    bits = builder.shl(builder.zext(halves, ir.VectorType(INT32, size)), vectors.splat(INT32, 16, size))
    return builder.bitcast(bits, ir.VectorType(FLOAT, size))


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
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)
