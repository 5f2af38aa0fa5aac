"""Dot products of rows of a matrix with rows of activations, a tile of them at once, written in LLVM's vectors.

Left to itself the compiler would choose the order of a sum by what surrounds it, and a stream's values would change in
their last bits with its neighbours. Here the order is fixed: it is the same in a tile of any size, on any CPU.

A row's length is a multiple of `WIDTH`, with int8 of `GROUP`, with int4 of `SMALL_GROUP`.
"""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import float32, int64, types
from numba.core import cgutils
from numba.extending import intrinsic

WIDTH = 8  # numbers taken at once; int8: twice as many
GROUP = 128  # int8 weights of one scale
SMALL_GROUP = 32  # int4 weights of one scale; more would not fit 16-bit sums
LINE = 64  # bytes that are fetched at once
PANEL = 8  # outputs whose int4 weights lie together, one for each lane of a sum

_I8, _I16, _I32, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, WIDTH)
_INTS = ir.VectorType(_I32, WIDTH)


def tile(outputs, rows, ahead=False):
    """An intrinsic: (weights, groups, x, o, n) -> the float32 products of weights[o], weights[o + 1], ... with x[n],
    x[n + 1], ...: all rows of the first output, then of the second.

    weights: [O, I], what it holds: see products.py; groups: float32 [O, I / 128], for int8 alone; x: [N, I], float32,
    with int8 weights int16. `ahead`: fetch the weights of the next tile, which are not in the processor's cache.
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
        heavy = _rows(builder, weights.data, o, inputs, outputs)
        light = _rows(builder, x.data, n, inputs, rows)
        if signature.args[0].dtype == types.int8:
            size = cgutils.unpack_tuple(builder, groups.shape)[1]
            sums = _grouped(builder, heavy, light, _rows(builder, groups.data, o, size, outputs), inputs, ahead)
        else:
            sums = _plain(builder, signature.args[0].dtype, heavy, light, inputs, ahead)
        return context.make_tuple(builder, signature.return_type, [_total(builder, each) for each in sums])

    return intrinsic(typed)


def panel(rows, ahead=False):
    """An intrinsic: (weights, groups, x, factors, o, n) -> the float32 products of the int4 weights of outputs o..o + 7
    with x[n], x[n + 1], ...: all rows of the first output, then of the second. o is a multiple of 8.

    weights, groups: see weights.py; x: int8 [N, I]; factors: float32 [N, 2, I / 32], of each group of
    a row its scale, and what is added because the weights are kept without a sign. `ahead`: as of `tile`.
    """

    def typed(context, weights, groups, x, factors, o, n):
        return types.UniTuple(float32, PANEL * rows)(weights, groups, x, factors, o, n), code

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
        inputs = builder.mul(count, _index(SMALL_GROUP))
        heavy = builder.gep(weights.data, [builder.mul(o, builder.sdiv(inputs, _index(2)))])
        scales = builder.gep(groups.data, [builder.mul(o, count)])
        light = _rows(builder, x.data, n, inputs, rows)
        factors = _rows(builder, factors.data, n, builder.mul(count, _index(2)), rows)
        sums = _halved(builder, heavy, scales, light, factors, count, ahead)
        lanes = [builder.extract_element(total, _I32(lane)) for lane in range(PANEL) for total in sums]
        return context.make_tuple(builder, signature.return_type, lanes)

    return intrinsic(typed)


def _rows(builder, data, first, size, count):
    """Pointers to `count` rows of `size` from `first` on."""
    return [builder.gep(data, [builder.mul(builder.add(first, _index(k)), size)]) for k in range(count)]


def _plain(builder, kind, heavy, light, inputs, ahead):
    """Sums of products of numbers, one for each lane."""
    sums = [_variable(builder, ir.Constant(_FLOATS, None)) for _ in heavy for _ in light]
    with cgutils.for_range(builder, builder.sdiv(inputs, _index(WIDTH))) as loop:
        at = builder.mul(loop.index, _index(WIDTH))
        if ahead:
            for row in heavy:
                _fetch(builder, row, builder.add(at, builder.mul(inputs, _index(len(heavy)))))
        weights = [_number(builder, kind, row, at) for row in heavy]
        for r, row in enumerate(light):
            value = _load(builder, row, at, _FLOATS)
            for k, weight in enumerate(weights):
                _accumulate(builder, sums[k * len(light) + r], weight, value)
    return [builder.load(total) for total in sums]


def _number(builder, kind, row, at):
    """WIDTH weights as float32."""
    return _load(builder, row, at, _FLOATS) if kind == types.float32 else _upper(builder, row, at)


def _upper(builder, row, at):
    """WIDTH float32 of which only the upper halves are kept: bf16."""
    halves = _load(builder, row, at, ir.VectorType(_I16, WIDTH))
    bits = builder.shl(builder.zext(halves, _INTS), _splat(_I32, 16, WIDTH))
    return builder.bitcast(bits, _FLOATS)


def _grouped(builder, heavy, light, scales, inputs, ahead):
    """Sums of products of int8 with int16, exact in a group; a group's sum times its scale."""
    sums = [_variable(builder, ir.Constant(_FLOATS, None)) for _ in heavy for _ in light]
    wide = ir.VectorType(_I32, 2 * WIDTH)
    with cgutils.for_range(builder, builder.sdiv(inputs, _index(GROUP))) as group:
        start = builder.mul(group.index, _index(GROUP))
        parts = [ir.Constant(_INTS, None)] * len(sums)
        for step in range(0, GROUP, 2 * WIDTH):
            at = builder.add(start, _index(step))
            if ahead and step % LINE == 0:
                for row in heavy:
                    _fetch(builder, row, builder.add(at, builder.mul(inputs, _index(len(heavy)))))
            weights = [
                builder.sext(_load(builder, row, at, ir.VectorType(ir.IntType(8), 2 * WIDTH)), wide) for row in heavy
            ]
            for r, row in enumerate(light):
                value = builder.sext(_load(builder, row, at, ir.VectorType(_I16, 2 * WIDTH)), wide)
                for k, weight in enumerate(weights):
                    # Processors have one instruction for products and the sums of pairs.
                    product = builder.mul(weight, value)
                    even, odd = _every_other(builder, product, 0), _every_other(builder, product, 1)
                    total = k * len(light) + r
                    parts[total] = builder.add(parts[total], builder.add(even, odd))
        for k, row in enumerate(scales):
            scale = _spread(builder, builder.load(builder.gep(row, [group.index])))
            for r in range(len(light)):
                total = k * len(light) + r
                _accumulate(builder, sums[total], scale, builder.sitofp(parts[total], _FLOATS))
    return [builder.load(total) for total in sums]


def _halved(builder, heavy, scales, light, factors, count, ahead):
    """Sums of products of int4 with int8, exact in a group; a group's sum times the scales of both.

    A step are 4 * PANEL bytes: of each output four inputs in the lower halves of bytes and the next four in the upper.
    """
    sums = [_variable(builder, ir.Constant(_FLOATS, None)) for _ in light]
    step, steps = 4 * PANEL, SMALL_GROUP // 8
    nibble = _splat(_I8, 15, step)
    with cgutils.for_range(builder, count) as group:
        first, start = (builder.mul(group.index, _index(size)) for size in (SMALL_GROUP, steps * step))
        parts = [ir.Constant(ir.VectorType(_I16, 2 * PANEL), None)] * len(light)
        for k in range(steps):
            at = builder.add(start, _index(k * step))
            if ahead and k * step % LINE == 0:
                _fetch(builder, heavy, builder.add(at, builder.mul(count, _index(steps * step))))
            both = _load(builder, heavy, at, ir.VectorType(_I8, step))
            halves = builder.and_(both, nibble), builder.lshr(both, _splat(_I8, 4, step))
            for r, row in enumerate(light):
                for h, half in enumerate(halves):
                    four = builder.gep(row, [builder.add(first, _index(8 * k + 4 * h))])
                    four = builder.load(builder.bitcast(four, _I32.as_pointer()), align=1)
                    pairs = _pairs(builder, half, builder.bitcast(_spread(builder, four), half.type))
                    parts[r] = builder.add(parts[r], pairs)
        scale = _upper(builder, scales, builder.mul(group.index, _index(PANEL)))
        for r, row in enumerate(factors):
            part = builder.sext(parts[r], ir.VectorType(_I32, 2 * PANEL))
            part = builder.add(_every_other(builder, part, 0), _every_other(builder, part, 1))
            factor, offset = (
                _spread(builder, builder.load(builder.gep(row, [place])))
                for place in (group.index, builder.add(group.index, count))
            )
            _accumulate(builder, sums[r], scale, _fma(builder, builder.sitofp(part, _FLOATS), factor, offset))
    return [builder.load(total) for total in sums]


def _pairs(builder, a, b):
    """a * b, int8 without and with a sign, and the sums of neighbours, int16, for which these are small enough."""
    if get_host_cpu_features().get("avx2"):  # it has one instruction for that, which the compiler does not find
        kind = ir.FunctionType(ir.VectorType(_I16, a.type.count // 2), [a.type, b.type])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pmadd.ub.sw"), [a, b])
    wide = ir.VectorType(_I16, a.type.count)
    product = builder.mul(builder.zext(a, wide), builder.sext(b, wide))
    return builder.add(_every_other(builder, product, 0), _every_other(builder, product, 1))


def _fetch(builder, row, at):
    """Ask for what will be read soon; it may lie outside the array, and then nothing happens."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
    fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(fetch, [builder.bitcast(builder.gep(row, [at]), byte), _I32(0), _I32(3), _I32(1)])


def _accumulate(builder, total, a, b):
    """total += a * b, rounded once."""
    builder.store(_fma(builder, a, b, builder.load(total)), total)


def _fma(builder, a, b, c):
    """a * b + c, rounded once; of numbers or of vectors."""
    kind = ir.FunctionType(a.type, [a.type] * 3)
    name = "f32" if a.type == _FLOAT else f"v{a.type.count}f32"
    fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.{name}")
    return builder.call(fma, [a, b, c])


def _total(builder, vector):
    """The sum of a vector's lanes: halves upon each other."""
    size = vector.type.count
    while size > 1:
        size //= 2
        low, high = _pick(builder, vector, range(size)), _pick(builder, vector, range(size, 2 * size))
        vector = builder.fadd(low, high)
    return builder.extract_element(vector, _I32(0))


def _index(value):
    return ir.Constant(ir.IntType(64), value)


def _splat(kind, value, size):
    return ir.Constant(ir.VectorType(kind, size), [value] * size)


def _pick(builder, vector, lanes):
    mask = ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes))
    return builder.shuffle_vector(vector, vector, mask)


def _every_other(builder, vector, first):
    return _pick(builder, vector, range(first, vector.type.count, 2))


def _spread(builder, value):
    """A vector of one number, WIDTH times."""
    vector = builder.insert_element(ir.Constant(ir.VectorType(value.type, WIDTH), ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(vector, vector, _splat(_I32, 0, WIDTH))


def _variable(builder, value):
    """A variable; the compiler keeps it in registers."""
    return cgutils.alloca_once_value(builder, value)


def _load(builder, pointer, at, kind):
    return builder.load(builder.bitcast(builder.gep(pointer, [at]), kind.as_pointer()), align=1)
