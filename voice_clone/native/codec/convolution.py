"""Products of rows with a matrix in panels, and the activation of the codec's decoder, written in LLVM's vectors.

Every layer of a convolutional network over channel-last rows is such a product. A convolution's row n is the rows
n, n + d, ... of its input, one for each tap, d its dilation: nothing is copied, the taps are read where they are. A
transposed convolution of stride r and kernel 2 r takes rows n and n + 1 and makes r rows at once, one after the other.
Some convolutions do with fewer multiplications: see minimal_filtering.py.

A panel is `PANEL` outputs, fewer in the last one: all weights of the first input, then of the second, and so on. A
tile of rows times a panel stays in registers while the inputs pass by. An output's sum has its inputs' order, in
blocks of the caller's choice: it is the same, bit for bit, in a tile of any size.

Arrays are flat and places in them are given as offsets, in numbers.
"""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

import math

import numpy as np
from llvmlite import ir
from numba import int64, types
from numba.core import cgutils
from numba.extending import intrinsic

from voice_clone.native.matrix.dots import WIDTH, _accumulate, _fma, _index, _load, _splat, _spread, _variable

VECTORS = 3  # of a panel
PANEL = VECTORS * WIDTH
ROWS = 4  # of a tile

_FLOAT = ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, WIDTH)

# sin(r) = r + r z (c0 + z (c1 + ...)), z = r r, for r up to half of pi; relative error 7e-9, by least squares
# reweighted until the largest error no longer fell.
_SINE = (-0.16666658222675323, 0.008333045057952404, -0.00019807943317573518, 2.6019497454399243e-06)
_PI = np.float32(np.pi)
_PI_REST = np.float32(np.pi - float(_PI))
_LIMIT = 2.0  # beyond half of pi: what only a number past all precision has left over


def tile(rows, vectors):
    """An intrinsic: (weights, w, x, n, between_rows, taps, between_taps, inputs, sums, s, first) adds to `sums` the
    products of rows of x with a part of a panel.

    All numbers are float32.
    weights: the panel's, from w on [taps * inputs, vectors * WIDTH].
    x: row r's inputs of tap k are those from n + r * between_rows + k * between_taps on.
    sums: from s on [rows, PANEL]; what they were before counts unless `first`.
    """

    def typed(context, weights, w, x, n, between_rows, taps, between_taps, inputs, sums, s, first):
        places = (w, n, between_rows, taps, between_taps, inputs, s)
        if not all(isinstance(place, types.Integer) for place in places):
            return None
        whole = types.int64
        return types.void(weights, whole, x, whole, whole, whole, whole, whole, sums, whole, types.boolean), code

    def code(context, builder, signature, arguments):
        weights, w, x, n, between_rows, taps, between_taps, inputs, sums, s, first = arguments
        weights, x, sums = (
            context.make_array(signature.args[place])(context, builder, value).data
            for place, value in ((0, weights), (2, x), (8, sums))
        )
        totals = [_variable(builder, ir.Constant(_FLOATS, None)) for _ in range(rows * vectors)]
        with cgutils.for_range(builder, taps) as tap:
            start = builder.add(n, builder.mul(tap.index, between_taps))
            heads = [builder.gep(x, [builder.add(start, builder.mul(between_rows, _index(r)))]) for r in range(rows)]
            panel = builder.gep(
                weights, [builder.add(w, builder.mul(builder.mul(tap.index, inputs), _index(vectors * WIDTH)))]
            )
            with cgutils.for_range(builder, inputs) as loop:
                at = builder.mul(loop.index, _index(vectors * WIDTH))
                heavy = [_load(builder, panel, builder.add(at, _index(v * WIDTH)), _FLOATS) for v in range(vectors)]
                for r, head in enumerate(heads):
                    value = _spread(builder, builder.load(builder.gep(head, [loop.index])))
                    for v, weight in enumerate(heavy):
                        _accumulate(builder, totals[r * vectors + v], value, weight)
        places = [
            builder.bitcast(builder.gep(sums, [builder.add(s, _index(r * PANEL + v * WIDTH))]), _FLOATS.as_pointer())
            for r in range(rows)
            for v in range(vectors)
        ]
        with builder.if_else(first) as (begin, go_on):
            with begin:
                for place, total in zip(places, totals, strict=True):
                    builder.store(builder.load(total), place, align=4)
            with go_on:
                for place, total in zip(places, totals, strict=True):
                    before = builder.load(place, align=4)
                    builder.store(builder.fadd(before, builder.load(total)), place, align=4)
        return context.get_dummy_value()

    return intrinsic(typed)


def finisher(adds, keeps, snake):
    """An intrinsic: (sums, s, parameters, p, columns, residual, r, target, t) finishes WIDTH outputs.

    The value is that of `sums` and the bias, if it `adds` also that of `residual`. It is written to `residual` if it
    `keeps` it, and to `target`, with `snake` behind that activation. All are float32. parameters: from p on the bias,
    `columns` numbers later the activation's alpha, as many later its scale.
    """

    def typed(context, sums, s, parameters, p, columns, residual, r, target, t):
        if not all(isinstance(place, types.Integer) for place in (s, p, columns, r, t)):
            return None
        return types.void(sums, int64, parameters, int64, int64, residual, int64, target, int64), code

    def code(context, builder, signature, arguments):
        sums, s, parameters, p, columns, residual, r, target, t = arguments
        sums, parameters, residual, target = (
            context.make_array(signature.args[place])(context, builder, value).data
            for place, value in ((0, sums), (2, parameters), (5, residual), (7, target))
        )
        value = builder.fadd(_load(builder, sums, s, _FLOATS), _load(builder, parameters, p, _FLOATS))
        if adds:
            value = builder.fadd(value, _load(builder, residual, r, _FLOATS))
        if keeps:
            _store(builder, residual, r, value)
        if snake:
            alpha = builder.add(p, columns)
            scale = builder.add(alpha, columns)
            value = _snake(
                builder,
                value,
                _load(builder, parameters, alpha, _FLOATS),
                _load(builder, parameters, scale, _FLOATS),
            )
        _store(builder, target, t, value)
        return context.get_dummy_value()

    return intrinsic(typed)


def _snake(builder, x, alpha, scale):
    """x + scale * sin(alpha x) ** 2.

    The square of the sine has the period pi: what is left of alpha x after the nearest multiple of it lies within half
    of pi, and its sign does not matter. Error of the square: below 2 ** -21 for alpha x up to 2 ** 18 in size. Beyond
    that the sine is still one of a number nearby; NaN and infinity stay NaN or infinity.
    """
    angle = builder.fmul(x, alpha)
    kind = ir.FunctionType(_FLOATS, [_FLOATS])
    nearest = cgutils.get_or_insert_function(builder.module, kind, f"llvm.rint.v{WIDTH}f32")
    turns = builder.fneg(builder.call(nearest, [builder.fmul(angle, _constant(1 / math.pi))]))
    rest = _fma(builder, turns, _constant(_PI_REST), _fma(builder, turns, _constant(_PI), angle))
    for sign, limit in (("<", _LIMIT), (">", -_LIMIT)):
        rest = builder.select(builder.fcmp_ordered(sign, rest, _constant(limit)), rest, _constant(limit))
    square = builder.fmul(rest, rest)
    series = _constant(_SINE[-1])
    for coefficient in reversed(_SINE[:-1]):
        series = _fma(builder, series, square, _constant(coefficient))
    sine = _fma(builder, builder.fmul(rest, square), series, rest)
    return _fma(builder, builder.fmul(sine, sine), scale, x)


def _store(builder, data, at, vector):
    builder.store(vector, builder.bitcast(builder.gep(data, [at]), vector.type.as_pointer()), align=4)


def _constant(value):
    return _splat(_FLOAT, float(np.float32(value)), WIDTH)
