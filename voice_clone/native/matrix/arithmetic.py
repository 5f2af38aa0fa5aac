"""Arithmetic whose every rounding is fixed: sums in an order of our own, and a * b + c rounded once.

Were the compiler free to choose them, it would do so for each of the copies that it makes of a loop: one for vectors,
one for the rest, one for arrays that might overlap. Which of them runs depends on where arrays happen to lie, and so
would the last bits. So nothing here is compiled with fast arithmetic, and what needs vectors is written in them.
"""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

from llvmlite import ir
from numba import float32, types
from numba.core import cgutils
from numba.extending import intrinsic

from voice_clone.native.matrix.dots import (
    _FLOAT,
    _FLOATS,
    _I32,
    _INTS,
    WIDTH,
    _fma,
    _index,
    _load,
    _spread,
    _total,
    _variable,
)

VECTORS = 4  # sums side by side: one has to wait for itself


@intrinsic
def fma(context, a, b, c):
    """a * b + c, rounded once; float32."""

    def code(context, builder, signature, arguments):
        return _fma(builder, *arguments)

    return float32(float32, float32, float32), code


@intrinsic
def dot(context, a, b):
    """The sum of the products of float32 [N] and [N]."""

    def code(context, builder, signature, arguments):
        (a, size), (b, _) = (_array(context, builder, signature, arguments, place) for place in range(2))

        def add(total, at, kind):
            return _fma(builder, _load(builder, a, at, kind), _load(builder, b, at, kind), total)

        return _in_order(builder, size, add)

    return float32(a, b), code


@intrinsic
def total(context, a):
    """The sum of float32 [N]."""

    def code(context, builder, signature, arguments):
        a, size = _array(context, builder, signature, arguments, 0)
        return _in_order(builder, size, lambda total, at, kind: builder.fadd(total, _load(builder, a, at, kind)))

    return float32(a), code


@intrinsic
def total_from(context, a, keys, limit):
    """The sum of float32 [N] where the keys, int32 [N], are not below a limit."""

    def code(context, builder, signature, arguments):
        (a, size), (keys, _) = (_array(context, builder, signature, arguments, place) for place in range(2))
        limit = arguments[2]
        limits = _spread(builder, limit)

        def add(total, at, kind):
            wide = kind == _FLOATS
            there = builder.icmp_signed(
                ">=", _load(builder, keys, at, _INTS if wide else _I32), limits if wide else limit
            )
            return builder.fadd(total, builder.select(there, _load(builder, a, at, kind), ir.Constant(kind, None)))

        return _in_order(builder, size, add)

    return float32(a, keys, types.int32), code


def _array(context, builder, signature, arguments, place):
    """Of an argument that is an array: where it begins, and its length."""
    array = context.make_array(signature.args[place])(context, builder, arguments[place])
    return array.data, cgutils.unpack_tuple(builder, array.shape)[0]


def _in_order(builder, size, add):
    """A sum over `size` numbers: in `VECTORS` vectors, in one, then number by number.

    add: (total, at, kind) -> the total with the next numbers, from `at` on, of that kind: a vector or a float.
    """
    totals = [_variable(builder, ir.Constant(_FLOATS, None)) for _ in range(VECTORS)]
    blocks = builder.sdiv(size, _index(VECTORS * WIDTH))
    with cgutils.for_range(builder, blocks) as loop:
        start = builder.mul(loop.index, _index(VECTORS * WIDTH))
        for v, each in enumerate(totals):
            builder.store(add(builder.load(each), builder.add(start, _index(v * WIDTH)), _FLOATS), each)
    done = builder.mul(blocks, _index(VECTORS * WIDTH))
    vectors = builder.sdiv(builder.sub(size, done), _index(WIDTH))
    with cgutils.for_range(builder, vectors) as loop:
        at = builder.add(done, builder.mul(loop.index, _index(WIDTH)))
        builder.store(add(builder.load(totals[0]), at, _FLOATS), totals[0])
    done = builder.add(done, builder.mul(vectors, _index(WIDTH)))
    a, b, c, d = (builder.load(each) for each in totals)
    result = _variable(builder, _total(builder, builder.fadd(builder.fadd(a, b), builder.fadd(c, d))))
    with cgutils.for_range(builder, builder.sub(size, done)) as loop:
        builder.store(add(builder.load(result), builder.add(done, loop.index), _FLOAT), result)
    return builder.load(result)
