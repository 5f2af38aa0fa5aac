"""A product as a layer of a chain: sums of tiles of rows with panels of a matrix, then bias, residual, activation."""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import math

from numba import float32

from voice_clone.native.codec.layer_table import (
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
from voice_clone.native.codec.panels import PANEL_OUTPUTS, TILE_ROWS, finisher, tile_product
from voice_clone.native.compilation import compiled
from voice_clone.native.vectors import WIDTH

BLOCK_INPUTS = 512  # inputs whose part of a panel stays in a core's cache while rows pass by

# Products of a whole tile of rows and of a single row, with panels of 3, 2 and 1 vectors.
_tile_3, _tile_2, _tile_1 = tile_product(TILE_ROWS, 3), tile_product(TILE_ROWS, 2), tile_product(TILE_ROWS, 1)
_row_3, _row_2, _row_1 = tile_product(1, 3), tile_product(1, 2), tile_product(1, 1)
_plain, _plain_set, _plain_added = (
    finisher(False, False, False),
    finisher(False, True, False),
    finisher(True, True, False),
)
_snake, _snake_set, _snake_added = finisher(False, False, True), finisher(False, True, True), finisher(True, True, True)


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
