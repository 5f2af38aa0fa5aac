"""Dot products of a matrix's row with one or four vectors, written in LLVM's vectors.

Left to itself the compiler would choose the order of a sum by what surrounds it, and a stream's values would change in
their last bits with its neighbours. Here the order is fixed: it is the same for one vector and for four, on any CPU.

A row's length is a multiple of `WIDTH`, with int8 of `GROUP`.
"""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

from llvmlite import ir
from numba import float32, int64, types
from numba.core import cgutils
from numba.extending import intrinsic

WIDTH = 16  # numbers taken at once
GROUP = 128  # int8 weights of one scale

_I32, _FLOAT = ir.IntType(32), ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, WIDTH)
_HALF = WIDTH // 2


@intrinsic
def dot(context, weights, groups, x, o, n):
    """weights[o] . x[n], as float32; see kernels.py for what an array of weights holds.

    weights: [O, I]; groups: float32 [O, I / 128], for int8 alone; x: [N, I], float32, with int8 weights int16.
    """
    return float32(weights, groups, x, o, n), _code(1)


@intrinsic
def dots(context, weights, groups, x, o, n):
    """The same with x[n], x[n + 1], x[n + 2], x[n + 3]: four numbers for each weight read."""
    return types.UniTuple(float32, 4)(weights, groups, x, o, n), _code(4)


def _code(count):
    def code(context, builder, signature, arguments):
        weights, groups, x = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
        )
        o, first = (
            context.cast(builder, value, kind, int64)
            for kind, value in zip(signature.args[3:], arguments[3:], strict=True)
        )
        inputs = cgutils.unpack_tuple(builder, weights.shape)[1]
        row = builder.gep(weights.data, [builder.mul(o, inputs)])
        vectors = [builder.gep(x.data, [builder.mul(builder.add(first, _index(k)), inputs)]) for k in range(count)]
        kind = signature.args[0].dtype
        if kind == types.int8:
            size = cgutils.unpack_tuple(builder, groups.shape)[1]
            sums = _grouped(builder, row, vectors, builder.gep(groups.data, [builder.mul(o, size)]), size)
        else:
            sums = _plain(builder, kind, row, vectors, inputs)
        totals = [_total(builder, each) for each in sums]
        return totals[0] if count == 1 else context.make_tuple(builder, signature.return_type, totals)

    return code


def _plain(builder, kind, row, vectors, inputs):
    """Sums of products of numbers, one for each lane."""
    sums = [_zero(builder, _FLOATS) for _ in vectors]
    with cgutils.for_range(builder, builder.sdiv(inputs, _index(WIDTH))) as loop:
        at = builder.mul(loop.index, _index(WIDTH))
        if kind == types.float32:
            weight = _load(builder, row, at, _FLOATS)
        else:  # bf16, the upper half
            halves = _load(builder, row, at, ir.VectorType(ir.IntType(16), WIDTH))
            bits = builder.zext(halves, ir.VectorType(_I32, WIDTH))
            bits = builder.shl(bits, _splat(_I32, 16, WIDTH))
            weight = builder.bitcast(bits, _FLOATS)
        for vector, total in zip(vectors, sums, strict=True):
            value = _load(builder, vector, at, _FLOATS)
            _accumulate(builder, total, weight, value)
    return [builder.load(total) for total in sums]


def _grouped(builder, row, vectors, scales, size):
    """Sums of products of int8 with int16, exact in a group; a group's sum times its scale."""
    floats = ir.VectorType(_FLOAT, _HALF)
    sums = [_zero(builder, floats) for _ in vectors]
    with cgutils.for_range(builder, size) as loop:
        parts = [_splat(_I32, 0, _HALF)] * len(vectors)
        for step in range(0, GROUP, WIDTH):
            at = builder.add(builder.mul(loop.index, _index(GROUP)), _index(step))
            bytes_ = _load(builder, row, at, ir.VectorType(ir.IntType(8), WIDTH))
            weight = builder.sext(bytes_, ir.VectorType(_I32, WIDTH))
            for k, vector in enumerate(vectors):
                value = _load(builder, vector, at, ir.VectorType(ir.IntType(16), WIDTH))
                product = builder.mul(weight, builder.sext(value, ir.VectorType(_I32, WIDTH)))
                pairs = builder.add(
                    _pick(builder, product, range(0, WIDTH, 2)), _pick(builder, product, range(1, WIDTH, 2))
                )
                parts[k] = builder.add(parts[k], pairs)  # processors have one instruction for products and pairs
        scale = builder.load(builder.gep(scales, [loop.index]))
        scale = builder.insert_element(ir.Constant(floats, ir.Undefined), scale, _I32(0))
        scale = builder.shuffle_vector(scale, scale, _splat(_I32, 0, _HALF))
        for part, total in zip(parts, sums, strict=True):
            value = builder.sitofp(part, floats)
            _accumulate(builder, total, scale, value)
    return [builder.load(total) for total in sums]


def _accumulate(builder, total, a, b):
    """total += a * b, rounded once."""
    kind = ir.FunctionType(a.type, [a.type] * 3)
    fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{a.type.count}f32")
    builder.store(builder.call(fma, [a, b, builder.load(total)]), total)


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


def _zero(builder, kind):
    """A variable; the compiler keeps it in registers."""
    return cgutils.alloca_once_value(builder, ir.Constant(kind, None))


def _load(builder, pointer, at, kind):
    return builder.load(builder.bitcast(builder.gep(pointer, [at]), kind.as_pointer()), align=1)
