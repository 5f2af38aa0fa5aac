"""A product as a layer of a chain: rows times a matrix in panels, then bias, residual signal and activation.

Every layer of a convolutional network over channel-last rows is such a product. Output row n of a convolution with
dilation d depends on the input rows n, n + d, ..., one for each tap. The taps are read where they lie; nothing is
copied. A transposed convolution of stride r and kernel 2 * r reads rows n and n + 1 and makes r rows, one after the
other. Some convolutions are computed with fewer multiplications; see winograd.py.

A panel is `PANEL_OUTPUTS` outputs of a matrix, fewer in the last panel. All weights of the first input lie first, then
those of the second, and so on. The sums of a tile, some rows times a panel, stay in registers while the inputs pass by.
The sum of an output has the order of its inputs, in blocks that the caller chooses: it is the same, bit for bit, in a
tile of any size.

Arrays are float32 and flat. A place in an array is an offset in numbers.
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import math

import numpy as np
from llvmlite import ir
from numba import float32, int64, types
from numba.core import cgutils
from numba.extending import intrinsic

from voice_clone.native.codec.layer_table import (
    ACTIVATION,
    ADDED,
    AFFINE_SNAKE,
    BETWEEN_TAPS,
    COLUMNS,
    ELU,
    GELU,
    GELU_TANH,
    INPUTS,
    PARAMETERS,
    RESIDUAL,
    SET,
    SIZE,
    SNAKE,
    TAPS,
    WEIGHTS,
)
from voice_clone.native.kernels import vectors
from voice_clone.native.kernels.arithmetic import elu, gelu_tanh
from voice_clone.native.kernels.compilation import compiled
from voice_clone.native.kernels.vectors import FLOATS, constant, index
from voice_clone.native.sizes import PANEL_OUTPUTS, TILE_ROWS, WIDTH

# sin(r) = r + r * z * (c0 + z * (c1 + ...)), z = r * r, for r up to pi / 2; relative error 7e-9. The coefficients come
# from a least-squares fit whose weights were changed until the largest error no longer fell.
_SINE = (-0.16666658222675323, 0.008333045057952404, -0.00019807943317573518, 2.6019497454399243e-06)
_PI = np.float32(np.pi)
_PI_REST = np.float32(np.pi - float(_PI))
_LIMIT = 2.0  # above pi / 2: only numbers too large for any precision leave a remainder beyond it


def tile_product(rows, panel_vectors):
    """An intrinsic: the products of `rows` rows of x with a part of a panel of `panel_vectors` vectors of outputs.

    (weights, w, x, n, between_rows, taps, between_taps, inputs, sums, s, first): adds the products to `sums`.

    weights: the panel's part begins at w, [taps * inputs, panel_vectors * WIDTH].
    x: the inputs of row r and tap k begin at n + r * between_rows + k * between_taps.
    sums: [rows, PANEL_OUTPUTS] from s on. If `first`, their values before are ignored.
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
        totals = [vectors.variable(builder, ir.Constant(FLOATS, None)) for _ in range(rows * panel_vectors)]
        with cgutils.for_range(builder, taps) as tap:
            start = builder.add(n, builder.mul(tap.index, between_taps))
            x_rows = [builder.gep(x, [builder.add(start, builder.mul(between_rows, index(r)))]) for r in range(rows)]
            panel = builder.gep(
                weights, [builder.add(w, builder.mul(builder.mul(tap.index, inputs), index(panel_vectors * WIDTH)))]
            )
            with cgutils.for_range(builder, inputs) as loop:
                at = builder.mul(loop.index, index(panel_vectors * WIDTH))
                panel_row = [
                    vectors.load(builder, panel, builder.add(at, index(v * WIDTH)), FLOATS)
                    for v in range(panel_vectors)
                ]
                for r, x_row in enumerate(x_rows):
                    value = vectors.broadcast(builder, builder.load(builder.gep(x_row, [loop.index])))
                    for v, weight in enumerate(panel_row):
                        vectors.accumulate(builder, totals[r * panel_vectors + v], value, weight)
        places = [
            builder.bitcast(
                builder.gep(sums, [builder.add(s, index(r * PANEL_OUTPUTS + v * WIDTH))]), FLOATS.as_pointer()
            )
            for r in range(rows)
            for v in range(panel_vectors)
        ]
        with builder.if_else(first) as (begins, continues):
            with begins:
                for place, total in zip(places, totals, strict=True):
                    builder.store(builder.load(total), place, align=4)
            with continues:
                for place, total in zip(places, totals, strict=True):
                    before = builder.load(place, align=4)
                    builder.store(builder.fadd(before, builder.load(total)), place, align=4)
        return context.get_dummy_value()

    return intrinsic(typed)


def finisher(adds_residual, sets_residual, snake, affine=False):
    """An intrinsic that makes WIDTH outputs from their sums.

    (sums, s, parameters, p, columns, residual, r, target, t): a value is that of `sums` plus the bias, plus that of
    `residual` if `adds_residual`. It is written to `residual` if `sets_residual`. With `affine`, it is multiplied by a
    scale and a shift is added. With `snake`, Snake is applied to it. Then it is written to `target`.

    parameters: the bias begins at p, Snake's alpha `columns` numbers later, its scale another `columns` numbers later;
    then come the scale and the shift of `affine`.
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
        value = builder.fadd(vectors.load(builder, sums, s, FLOATS), vectors.load(builder, parameters, p, FLOATS))
        if adds_residual:
            value = builder.fadd(value, vectors.load(builder, residual, r, FLOATS))
        if sets_residual:
            vectors.store(builder, residual, r, value)
        if snake:
            places = [p]
            for _ in range(4 if affine else 2):
                places.append(builder.add(places[-1], columns))
            alpha, scale, *affine_pair = (vectors.load(builder, parameters, place, FLOATS) for place in places[1:])
            if affine:
                value = vectors.multiply_add(builder, value, *affine_pair)
            value = snake_of(builder, value, alpha, scale)
        vectors.store(builder, target, t, value)
        return context.get_dummy_value()

    return intrinsic(typed)


def snake_of(builder, x, alpha, scale):
    """x + scale * sin(alpha * x) ** 2 (Ziyin et al. 2020).

    The square of the sine has period pi. So the nearest multiple of pi is subtracted from alpha * x, and the remainder
    lies within pi / 2 of zero; the sign of its sine does not matter. The error of the square is below 2 ** -21 for
    alpha * x up to 2 ** 18 in magnitude. For larger numbers the result is that of a number nearby. NaN and infinity
    stay NaN or infinity.
    """
    angle = builder.fmul(x, alpha)
    kind = ir.FunctionType(FLOATS, [FLOATS])
    nearest = cgutils.get_or_insert_function(builder.module, kind, f"llvm.rint.v{WIDTH}f32")
    multiple = builder.fneg(builder.call(nearest, [builder.fmul(angle, constant(1 / math.pi))]))
    rest = vectors.fma(builder, multiple, constant(_PI), angle)
    rest = vectors.fma(builder, multiple, constant(_PI_REST), rest)
    for sign, limit in (("<", _LIMIT), (">", -_LIMIT)):
        rest = builder.select(builder.fcmp_ordered(sign, rest, constant(limit)), rest, constant(limit))
    square = builder.fmul(rest, rest)
    series = constant(_SINE[-1])
    for coefficient in reversed(_SINE[:-1]):
        series = vectors.multiply_add(builder, series, square, constant(coefficient))
    sine = vectors.multiply_add(builder, builder.fmul(rest, square), series, rest)
    return vectors.multiply_add(builder, builder.fmul(sine, sine), scale, x)


BLOCK_INPUTS = 512  # inputs whose part of a panel stays in a core's cache while rows pass by

# Products of a whole tile of rows and of a single row, with panels of 3, 2 and 1 vectors.
_tile_3, _tile_2, _tile_1 = tile_product(TILE_ROWS, 3), tile_product(TILE_ROWS, 2), tile_product(TILE_ROWS, 1)
_row_3, _row_2, _row_1 = tile_product(1, 3), tile_product(1, 2), tile_product(1, 1)
# What follows the sums, by what is done with the residual signal.
_finish_plain, _finish_snake = finisher(False, False, False), finisher(False, False, True)
_finish_plain_set, _finish_snake_set = finisher(False, True, False), finisher(False, True, True)
_finish_plain_added, _finish_snake_added = finisher(True, True, False), finisher(True, True, True)
_finish_affine, _finish_affine_added = finisher(False, False, True, True), finisher(True, True, True, True)


@compiled
def add_tile(weights, w, width, x, place, rows, between_rows, taps, between_taps, inputs, sums, s, first):
    """Add to `sums` the products of up to TILE_ROWS rows with a part of a panel of `width` outputs.

    The other arguments are those of `tile_product`; `place` is its n.
    """
    if rows == TILE_ROWS:
        if width == PANEL_OUTPUTS:
            _tile_3(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
        elif width == 2 * WIDTH:
            _tile_2(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
        else:
            _tile_1(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
        return
    for _ in range(rows):
        if width == PANEL_OUTPUTS:
            _row_3(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
        elif width == 2 * WIDTH:
            _row_2(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
        else:
            _row_1(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
        place += between_rows
        s += PANEL_OUTPUTS


@compiled
def finish_row(layer, parameters, sums, s, column, width, row, residual, target, start):
    """Add bias and residual signal to a row's sums with one panel, apply the activation, and write the outputs.

    s: where the sums begin. column, width: the panel's first output and how many it has. row: the row's number among
    those of all streams. start: where the row begins in `target`.
    """
    p, columns, how, activation = layer[PARAMETERS] + column, layer[COLUMNS], layer[RESIDUAL], layer[ACTIVATION]
    r, t = row * columns + column, start + column
    for v in range(0, width, WIDTH):
        if activation == SNAKE:
            if how == ADDED:
                _finish_snake_added(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
            elif how == SET:
                _finish_snake_set(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
            else:
                _finish_snake(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
        elif activation == AFFINE_SNAKE:
            if how == ADDED:
                _finish_affine_added(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
            else:
                _finish_affine(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
        elif how == ADDED:
            _finish_plain_added(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
        elif how == SET:
            _finish_plain_set(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
        else:
            _finish_plain(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
    if activation == GELU:
        for i in range(t, t + width):
            target[i] = float32(0.5) * target[i] * (float32(1) + math.erf(target[i] * float32(math.sqrt(0.5))))
    elif activation == ELU:
        for i in range(t, t + width):
            target[i] = elu(target[i])
    elif activation == GELU_TANH:
        for i in range(t, t + width):
            target[i] = gelu_tanh(target[i])


@compiled
def product(layer, weights, parameters, x, span, rows, panels, tiles, sums, residual, target, lead, length):
    """Some panels of a product, for some tiles of the rows of all streams.

    x: the rows of a stream begin `span` numbers after those of the stream before. rows: how many a stream has.
    panels, tiles: (first, last + 1). sums: this thread's memory. target: the rows that a stream writes begin `lead`
    numbers after its beginning; streams begin `length` numbers apart.
    """
    taps, inputs, columns, size = layer[TAPS], layer[INPUTS], layer[COLUMNS], layer[SIZE]
    block_taps = max(1, BLOCK_INPUTS // inputs)
    stream_tiles = (rows + TILE_ROWS - 1) // TILE_ROWS
    for panel in range(*panels):
        column = panel * PANEL_OUTPUTS
        width = min(PANEL_OUTPUTS, columns - column)
        w = layer[WEIGHTS] + column * taps * inputs
        for tap in range(0, taps, block_taps):
            count = min(block_taps, taps - tap)
            for start in range(0, inputs, BLOCK_INPUTS):
                block = min(BLOCK_INPUTS, inputs - start)
                begins = tap == 0 and start == 0
                place = tap * layer[BETWEEN_TAPS] + start
                for t in range(*tiles):
                    first = TILE_ROWS * (t % stream_tiles)
                    n = place + t // stream_tiles * span + first * size
                    s = (t - tiles[0]) * TILE_ROWS * PANEL_OUTPUTS
                    high = min(TILE_ROWS, rows - first)
                    add_tile(weights, w, width, x, n, high, size, count, layer[BETWEEN_TAPS], block, sums, s, begins)
                w += count * block * width
        for t in range(*tiles):
            stream, first = t // stream_tiles, TILE_ROWS * (t % stream_tiles)
            for n in range(first, min(first + TILE_ROWS, rows)):
                s = ((t - tiles[0]) * TILE_ROWS + n - first) * PANEL_OUTPUTS
                row_start = stream * length + lead + n * columns
                finish_row(layer, parameters, sums, s, column, width, stream * rows + n, residual, target, row_start)
