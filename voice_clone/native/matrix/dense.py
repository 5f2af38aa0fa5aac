"""Products as layers of a chain: sums of tiles of rows with panels of a matrix, and what follows them."""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

import math

from numba import float32, njit

from voice_clone.native.codec.convolution import PANEL, ROWS, finisher, tile
from voice_clone.native.matrix.dots import WIDTH
from voice_clone.native.matrix.table import (
    ACTIVATION,
    ADDED,
    BETWEEN_TAPS,
    COLUMNS,
    GELU,
    INPUTS,
    PARAMETERS,
    RESIDUAL,
    SET,
    SIZE,
    SNAKE,
    TAPS,
    WEIGHTS,
)
from voice_clone.native.transformer.kernels import _OPTIONS

BLOCK = 512  # inputs whose part of a panel stays in a core's cache while rows pass by

_three, _two, _one = tile(ROWS, 3), tile(ROWS, 2), tile(ROWS, 1)  # vectors of a panel
_three_single, _two_single, _one_single = tile(1, 3), tile(1, 2), tile(1, 1)
_plain, _plain_set, _plain_added = (
    finisher(False, False, False),
    finisher(False, True, False),
    finisher(True, True, False),
)
_snake, _snake_set, _snake_added = finisher(False, False, True), finisher(False, True, True), finisher(True, True, True)


@njit(**_OPTIONS)
def add_tile(weights, w, width, x, place, rows, between_rows, taps, between_taps, inputs, sums, s, first):
    """The sums of a tile's rows, up to ROWS, with a part of a panel of `width` outputs."""
    if rows == ROWS:
        if width == PANEL:
            _three(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
        elif width == 2 * WIDTH:
            _two(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
        else:
            _one(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
        return
    for _ in range(rows):
        if width == PANEL:
            _three_single(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
        elif width == 2 * WIDTH:
            _two_single(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
        else:
            _one_single(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
        place += between_rows
        s += PANEL


@njit(**_OPTIONS)
def finish(layer, parameters, sums, s, column, width, row, residual, target, start):
    """What follows the sums of a row with one panel: bias, residual signal, activation.

    row: its number among those of all streams; start: where it begins in `target`.
    """
    p, columns, how, activation = layer[PARAMETERS] + column, layer[COLUMNS], layer[RESIDUAL], layer[ACTIVATION]
    r, t = row * columns + column, start + column
    for v in range(0, width, WIDTH):
        if activation == SNAKE:
            if how == ADDED:
                _snake_added(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
            elif how == SET:
                _snake_set(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
            else:
                _snake(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
        elif how == ADDED:
            _plain_added(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
        elif how == SET:
            _plain_set(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
        else:
            _plain(sums, s + v, parameters, p + v, columns, residual, r + v, target, t + v)
    if activation == GELU:
        for i in range(t, t + width):
            target[i] = float32(0.5) * target[i] * (float32(1) + math.erf(target[i] * float32(math.sqrt(0.5))))


@njit(**_OPTIONS)
def product(layer, weights, parameters, x, span, rows, panels, tiles, sums, residual, target, lead, length):
    """Some panels of a product, for some tiles of the rows of all streams.

    x: a stream's rows begin each `span` numbers. target: those that a stream writes begin at `lead` and each `length`.
    """
    taps, inputs, columns, size = layer[TAPS], layer[INPUTS], layer[COLUMNS], layer[SIZE]
    together = max(1, BLOCK // inputs)  # taps
    each = (rows + ROWS - 1) // ROWS
    for panel in range(*panels):
        column = panel * PANEL
        width = min(PANEL, columns - column)
        w = layer[WEIGHTS] + column * taps * inputs
        for tap in range(0, taps, together):
            count = min(together, taps - tap)
            for start in range(0, inputs, BLOCK):
                block = min(BLOCK, inputs - start)
                begins = tap == 0 and start == 0
                place = tap * layer[BETWEEN_TAPS] + start
                for t in range(*tiles):
                    first = ROWS * (t % each)
                    n, s = place + t // each * span + first * size, (t - tiles[0]) * ROWS * PANEL
                    high = min(ROWS, rows - first)
                    add_tile(weights, w, width, x, n, high, size, count, layer[BETWEEN_TAPS], block, sums, s, begins)
                w += count * block * width
        for t in range(*tiles):
            stream, first = t // each, ROWS * (t % each)
            for n in range(first, min(first + ROWS, rows)):
                s, begin = ((t - tiles[0]) * ROWS + n - first) * PANEL, stream * length + lead + n * columns
                finish(layer, parameters, sums, s, column, width, stream * rows + n, residual, target, begin)
