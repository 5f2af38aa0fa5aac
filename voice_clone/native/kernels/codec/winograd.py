"""Winograd's minimal filtering as native code; see native/codec/winograd.py."""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import numpy as np
from numba import float32, int64, types
from numba.extending import intrinsic

from voice_clone.native.codec.layer_table import COLUMNS, DILATION, GROUPS, RATE, SIZE, WEIGHTS
from voice_clone.native.codec.winograd import INPUTS, OUTPUTS, PAIRS, PRODUCTS, TAPS
from voice_clone.native.kernels import vectors
from voice_clone.native.kernels.codec.product import add_tile, finish_row
from voice_clone.native.kernels.compilation import compiled
from voice_clone.native.kernels.vectors import FLOATS, constant, index
from voice_clone.native.sizes import PANEL_OUTPUTS, TILE_ROWS, WIDTH

_SQUARES = [*(value**2 for value in PAIRS), -1.0]  # of all points except 0 and infinity


def _sum_of_multiples(builder, squares, values):
    """The sum of `values` times the coefficients, lowest first, of the product of (z - square) over `squares`."""
    *coefficients, _ = np.poly(squares)[::-1]  # the highest is 1
    *values, total = values
    for coefficient, value in zip(reversed(coefficients), reversed(values), strict=True):
        total = vectors.multiply_add(builder, constant(coefficient), value, total)
    return total


@intrinsic
def _transform_channels(context, x, start, between_inputs, v, at, between_points):
    """The inputs of a group, WIDTH channels -> transformed inputs.

    x: input i begins at start + i * between_inputs. v: point p is written to at + p * between_points.
    """

    def code(context, builder, signature, arguments):
        x, start, between_inputs, v, at, between_points = arguments
        x, v = (
            context.make_array(signature.args[place])(context, builder, value).data for place, value in ((0, x), (3, v))
        )
        inputs = [
            vectors.load(builder, x, builder.add(start, builder.mul(between_inputs, index(i))), FLOATS)
            for i in range(INPUTS)
        ]
        even, odd = inputs[::2], inputs[1::2]
        points = [_sum_of_multiples(builder, _SQUARES, even)]
        for value, square in zip((*PAIRS, 1.0), _SQUARES, strict=True):
            others = [other for other in _SQUARES if other != square]
            a = _sum_of_multiples(builder, others, even[1:])
            b = _sum_of_multiples(builder, others, odd[:-1])
            points += [vectors.multiply_add(builder, constant(sign * value), b, a) for sign in (1, -1)]
        # The last a and b are the real and the imaginary part at i. Gauss's three factors are a + b, a - b and b.
        points += [b, _sum_of_multiples(builder, _SQUARES, odd)]
        for p, point in enumerate(points):
            vectors.store(builder, v, builder.add(at, builder.mul(between_points, index(p))), point)
        return context.get_dummy_value()

    return types.void(x, int64, int64, v, int64, int64), code


@intrinsic
def _outputs_from_products(context, sums, s, between):
    """WIDTH outputs of each row of a group from its products.

    sums: product p begins at s + p * between. Output k replaces product k.
    """

    def code(context, builder, signature, arguments):
        sums, s, between = arguments
        sums = context.make_array(signature.args[0])(context, builder, sums).data
        places = [builder.add(s, builder.mul(between, index(p))) for p in range(PRODUCTS)]
        zero, *opposite, first, second, third, infinity = (
            vectors.load(builder, sums, place, FLOATS) for place in places
        )
        pairs = list(zip(opposite[::2], opposite[1::2], strict=True))
        even = [builder.fadd(a, b) for a, b in pairs] + [builder.fadd(first, third)]
        odd = [builder.fsub(a, b) for a, b in pairs] + [builder.fadd(second, third)]
        for k in range(OUTPUTS):
            powers = [*(value**k for value in PAIRS), (-1) ** (k // 2)]
            parts = [*zip(powers, odd if k % 2 else even, strict=True)]
            if k == 0:
                total = zero
            elif k == OUTPUTS - 1:
                total = infinity
            else:
                power, part = parts.pop()
                total = builder.fmul(constant(power), part)
            for power, part in parts:
                total = vectors.multiply_add(builder, constant(power), part, total)
            vectors.store(builder, sums, places[k], total)
        return context.get_dummy_value()

    return types.void(sums, int64, int64), code


@compiled
def group_place(layer, group):
    """The frame of a group, and the group's first row in the frame. Groups are numbered over all frames."""
    each, dilation = layer[GROUPS], layer[DILATION]
    j = group % each
    return group // each, j // dilation * dilation * OUTPUTS + j % dilation


@compiled
def transform_inputs(layer, x, span, frames, groups, v):
    """The inputs of some groups -> transformed inputs v [PRODUCTS, groups, SIZE], followed by memory for INPUTS rows.

    x: the rows of a stream, `frames` frames, begin `span` numbers after those of the stream before. groups: (first,
    last + 1).
    """
    rate, size, dilation = layer[RATE], layer[SIZE], layer[DILATION]
    between_inputs, between_points = dilation * size, (groups[1] - groups[0]) * size
    room = PRODUCTS * between_points
    for group in range(*groups):
        frame, row = group_place(layer, group)
        start = frame // frames * span + (frame % frames * rate + row) * size
        at = (group - groups[0]) * size
        inside = TAPS - 1 + (rate - row + dilation - 1) // dilation  # inputs before the frame's end
        if inside >= INPUTS:
            for c in range(0, size, WIDTH):
                _transform_channels(x, start + c, between_inputs, v, at + c, between_points)
        else:
            for i in range(INPUTS):
                for c in range(size):
                    v[room + i * size + c] = x[start + i * between_inputs + c] if i < inside else float32(0)
            for c in range(0, size, WIDTH):
                _transform_channels(v, room + c, size, v, at + c, between_points)


@compiled
def winograd(layer, weights, parameters, v, frames, panels, groups, sums, residual, target, lead, length):
    """Some panels of a convolution, for some groups with the transformed inputs v.

    The weights of a panel are those of each point, one after the other. The other arguments are those of
    `product.product`.
    """
    rate, size, columns, dilation = layer[RATE], layer[SIZE], layer[COLUMNS], layer[DILATION]
    count = groups[1] - groups[0]
    for panel in range(*panels):
        column = panel * PANEL_OUTPUTS
        width = min(PANEL_OUTPUTS, columns - column)
        w = layer[WEIGHTS] + column * PRODUCTS * size
        for p in range(PRODUCTS):
            for g in range(0, count, TILE_ROWS):
                n = p * count + g
                rows = min(TILE_ROWS, count - g)
                add_tile(weights, w, width, v, n * size, rows, size, 1, 0, size, sums, n * PANEL_OUTPUTS, True)
            w += size * width
        for g in range(count):
            for c in range(0, width, WIDTH):
                _outputs_from_products(sums, g * PANEL_OUTPUTS + c, count * PANEL_OUTPUTS)
            frame, row = group_place(layer, groups[0] + g)
            stream = frame // frames
            for k in range(min(OUTPUTS, (rate - row + dilation - 1) // dilation)):
                n = frame * rate + row + k * dilation
                s = (k * count + g) * PANEL_OUTPUTS
                start = stream * length + lead + (n - stream * frames * rate) * columns
                finish_row(layer, parameters, sums, s, column, width, n, residual, target, start)
