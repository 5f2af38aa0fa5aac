"""A chain of layers over rows as one call of native code; see convolution.py for products and kernels.py for threads.

A layer is a row of a table of numbers. It reads one of two buffers and writes the other, so each layer is one phase.
A buffer holds for each of B streams what its reader remembers of earlier rows, then the new rows: so a convolution
sees its past before its present, and reads on over the border between them. Besides there is the residual signal.

What is remembered comes from the streams' state and goes into their next one: [B, S], each layer at its own place.
"""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

import math

import numpy as np
from numba import float32, njit

from voice_clone.native.convolution import PANEL, ROWS, finisher, tile
from voice_clone.native.dots import WIDTH
from voice_clone.native.kernels import _OPTIONS, _claim, _done, _normalise, _share, _wait

# Columns of the table of layers.
KIND = 0
RATE = 1  # rows a frame that the layer reads
SIZE = 2  # numbers of such a row, a multiple of WIDTH; behind its channels are zeros
MEMORY = 3  # numbers that it remembers of a stream
STATE = 4  # where they are in a stream's state
PARAMETERS = 5  # offset of its float32 parameters
WEIGHTS = 6  # a product's offset of its matrix, ...
COLUMNS = 7  # its outputs, a multiple of WIDTH: one row or several
TAPS = 8
BETWEEN_TAPS = 9
INPUTS = 10  # of a tap, a multiple of WIDTH
RESIDUAL = 11  # what it does with the residual signal
ACTIVATION = 12  # what it does with what it writes
HEADS = 13  # attention: of queries, ...
KV_HEADS = 14
WINDOW = 15  # positions that a query sees, its own included
CHANNELS = 16  # of SIZE
FIELDS = 17

# Kinds of layers and their parameters, each [CHANNELS] unless it says otherwise.
PRODUCT = 0  # bias; with snake also alpha and 1 / beta: [COLUMNS] each
NORM = 1  # weight, eps [1]: root-mean-square norm
ATTENTION = 2  # none
GATE = 3  # none: silu of the first half of a row times the second
DEPTHWISE = 4  # a convolution's weight [TAPS, CHANNELS] and bias; a layer norm's weight, bias and eps [1]
END = 5  # reads the result

UNTOUCHED, SET, ADDED = 0, 1, 2  # the residual signal: the product sets it; it adds to it, and passes on the sum
PLAIN, SNAKE, GELU = 0, 1, 2

BLOCK = 512  # inputs whose part of a panel stays in a core's cache while rows pass by
TILES = 32  # that pass by
CHUNKS = 16  # of a phase, for each thread, where there is so much to do

_three, _two, _one = tile(ROWS, 3), tile(ROWS, 2), tile(ROWS, 1)  # vectors of a panel
_three_single, _two_single, _one_single = tile(1, 3), tile(1, 2), tile(1, 1)
_plain, _plain_set, _plain_added = (
    finisher(False, False, False),
    finisher(False, True, False),
    finisher(True, True, False),
)
_snake, _snake_set, _snake_added = finisher(False, False, True), finisher(False, True, True), finisher(True, True, True)


@njit(**_OPTIONS)
def _sums(layer, weights, w, width, taps, inputs, x, start, span, rows, tiles, sums, first):
    """The sums of some tiles with `taps` times `inputs` inputs' part of a panel."""
    between_rows, between_taps = layer[SIZE], layer[BETWEEN_TAPS]
    each = (rows + ROWS - 1) // ROWS
    for t in range(*tiles):
        n = ROWS * (t % each)
        place, s = t // each * span + n * between_rows + start, (t - tiles[0]) * ROWS * PANEL
        if n + ROWS <= rows:
            if width == PANEL:
                _three(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
            elif width == 2 * WIDTH:
                _two(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
            else:
                _one(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
            continue
        for _ in range(n, rows):
            if width == PANEL:
                _three_single(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
            elif width == 2 * WIDTH:
                _two_single(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
            else:
                _one_single(weights, w, x, place, between_rows, taps, between_taps, inputs, sums, s, first)
            place += between_rows
            s += PANEL


@njit(**_OPTIONS)
def _finish(layer, parameters, sums, column, width, rows, tiles, residual, target, lead, length):
    """What follows the sums of some tiles with one panel: bias, residual signal, activation."""
    p, columns, how, activation = layer[PARAMETERS] + column, layer[COLUMNS], layer[RESIDUAL], layer[ACTIVATION]
    each = (rows + ROWS - 1) // ROWS
    for tile_number in range(*tiles):
        stream, first = tile_number // each, ROWS * (tile_number % each)
        for n in range(first, min(first + ROWS, rows)):
            s = ((tile_number - tiles[0]) * ROWS + n - first) * PANEL
            r = (stream * rows + n) * columns + column
            t = stream * length + lead + n * columns + column
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
def _product(layer, weights, parameters, x, span, rows, panels, tiles, sums, residual, target, lead, length):
    """Some panels of a product, for some tiles of the rows of all streams.

    x: a stream's rows begin each `span` numbers. target: those that a stream writes begin at `lead` and each `length`.
    """
    taps, inputs, columns = layer[TAPS], layer[INPUTS], layer[COLUMNS]
    together = max(1, BLOCK // inputs)  # taps
    for panel in range(*panels):
        column = panel * PANEL
        width = min(PANEL, columns - column)
        w = layer[WEIGHTS] + column * taps * inputs
        for tap in range(0, taps, together):
            count = min(together, taps - tap)
            for start in range(0, inputs, BLOCK):
                size = min(BLOCK, inputs - start)
                first = tap == 0 and start == 0
                place = tap * layer[BETWEEN_TAPS] + start
                _sums(layer, weights, w, width, count, size, x, place, span, rows, tiles, sums, first)
                w += count * size * width
        _finish(layer, parameters, sums, column, width, rows, tiles, residual, target, lead, length)


@njit(**_OPTIONS)
def _depthwise(layer, parameters, x, out):
    """A row's depthwise convolution x [TAPS * SIZE] and the layer norm behind it -> out [CHANNELS]."""
    size, channels, taps = layer[SIZE], layer[CHANNELS], layer[TAPS]
    start = layer[PARAMETERS]
    bias, norm = start + taps * channels, start + (taps + 1) * channels
    total = float32(0)
    for i in range(channels):
        out[i] = parameters[bias + i]
    for tap in range(taps):
        for i in range(channels):
            out[i] += parameters[start + tap * channels + i] * x[tap * size + i]
    for i in range(channels):
        total += out[i]
    mean = total / float32(channels)
    total = float32(0)
    for i in range(channels):
        out[i] -= mean
        total += out[i] * out[i]
    factor = float32(1) / math.sqrt(total / float32(channels) + parameters[norm + 2 * channels])
    for i in range(channels):
        out[i] = out[i] * factor * parameters[norm + i] + parameters[norm + channels + i]


@njit(**_OPTIONS)
def _turn(head, cos, sin):
    """Rotary embedding of one head [D], in place: dimension i turns with i + D / 2."""
    half = head.shape[0] // 2
    for i in range(half):
        a, b = head[i], head[half + i]
        head[i] = a * cos[i] - b * sin[i]
        head[half + i] = b * cos[i] + a * sin[i]


@njit(**_OPTIONS)
def _look(query, keys, values, scores, out):
    """One query [D] over keys and values [S * D] -> out [D]; scores: memory for S numbers."""
    dim = query.shape[0]
    scale = float32(1) / math.sqrt(float32(dim))
    largest = float32(-np.inf)
    for s in range(scores.shape[0]):
        total = float32(0)
        for i in range(dim):
            total += query[i] * keys[s * dim + i]
        scores[s] = total * scale
        largest = max(largest, scores[s])
    whole = float32(0)
    for i in range(dim):
        out[i] = float32(0)
    for s in range(scores.shape[0]):
        share = math.exp(scores[s] - largest)
        whole += share
        for i in range(dim):
            out[i] += share * values[s * dim + i]
    for i in range(dim):
        out[i] /= whole


@njit(**_OPTIONS)
def _attention(layer, x, stream, group, rows, past, next_past, position, cos, sin, own, target, width):
    """The queries of one key-value head over its window.

    x: [B, rows, SIZE] queries, keys and values; target: [B, rows, width], of which H * D are results. past, next_past:
    [B, S]; a state has the last WINDOW - 1 turned keys of each head, then the values. position: of the streams' first
    rows, [B]; cos, sin: [B, rows, D / 2].
    """
    _, keys, values, scores = own
    size, heads, kv_heads = layer[SIZE], layer[HEADS], layer[KV_HEADS]
    before = layer[WINDOW] - 1
    dim = layer[CHANNELS] // (heads + 2 * kv_heads)
    part = before * dim
    if group == 0:
        for n in range(stream * rows, (stream + 1) * rows):
            for i in range(n * width + heads * dim, (n + 1) * width):
                target[i] = float32(0)
    old_keys = layer[STATE] + group * part
    old_values = old_keys + kv_heads * part
    keys[:part] = past[stream, old_keys : old_keys + part]
    values[:part] = past[stream, old_values : old_values + part]
    for n in range(rows):
        row = (stream * rows + n) * size
        key, value = row + (heads + group) * dim, row + (heads + kv_heads + group) * dim
        new = keys[part + n * dim : part + (n + 1) * dim]
        for i in range(dim):
            new[i] = x[key + i]
            values[part + n * dim + i] = x[value + i]
        _turn(new, cos[stream, n], sin[stream, n])
    next_past[stream, old_keys : old_keys + part] = keys[rows * dim : rows * dim + part]
    next_past[stream, old_values : old_values + part] = values[rows * dim : rows * dim + part]
    ratio = heads // kv_heads
    for n in range(rows):
        seen = min(before, position[stream] + n) + 1
        first, last = (before + n + 1 - seen) * dim, (before + n + 1) * dim
        for h in range(group * ratio, (group + 1) * ratio):
            start = (stream * rows + n) * size + h * dim
            query = x[start : start + dim]
            _turn(query, cos[stream, n], sin[stream, n])
            start = (stream * rows + n) * width + h * dim
            _look(query, keys[first:last], values[first:last], scores[:seen], target[start : start + dim])


@njit(**_OPTIONS)
def _remember(layer, after, x, span, target, length, past, next_past):
    """What a layer remembers goes into its streams' next state; what the next one remembers comes out of theirs."""
    memory, at = layer[MEMORY], layer[STATE]
    for b in range(past.shape[0]):
        for i in range(memory):
            next_past[b, at + i] = x[(b + 1) * span - memory + i]
    memory, at = after[MEMORY], after[STATE]
    for b in range(past.shape[0]):
        for i in range(memory):
            target[b * length + i] = past[b, at + i]


@njit(**_OPTIONS)
def angles(position, frequencies, cos, sin):
    """Rotary tables [B, T, D / 2] of positions from `position` [B] on; frequencies: [D / 2]."""
    for b in range(cos.shape[0]):
        for n in range(cos.shape[1]):
            for i in range(cos.shape[2]):
                angle = float32(position[b] + n) * frequencies[i]
                cos[b, n, i] = math.cos(angle)
                sin[b, n, i] = math.sin(angle)


@njit(**_OPTIONS)
def run(thread, threads, counters, layers, weights, parameters, buffers, residual, own, frames, turns, pasts):
    """All layers on the next frames of B streams.

    Args:
        thread, threads: this thread's number and how many there are.
        counters: int64 [2 * layers], zeros.
        layers: int64 [L + 1, FIELDS], the last of kind END.
        weights: the products' matrices, one after the other.
        parameters: float32, all others.
        buffers: two, float32; the first has the rows that the first layer reads, which remembers nothing. The result
            is in the first if the number of layers is even, else in the second.
        residual: float32.
        own: of each thread: sums of a block of rows; keys; values; attention scores.
        frames: of each stream.
        turns: position of the streams' next frames [B]; cos and sin [B, frames, D / 2].
        pasts: the streams' state [B, S] and their next one, to be filled.
    """
    position, cos, sin = turns
    past, next_past = pasts
    batch = past.shape[0]
    mine = own[0][thread], own[1][thread], own[2][thread], own[3][thread]
    for phase in range(layers.shape[0] - 1):
        layer, after = layers[phase], layers[phase + 1]
        kind = layer[KIND]
        x, target = buffers[phase % 2], buffers[(phase + 1) % 2]
        rows, size = layer[RATE] * frames, layer[SIZE]
        span = layer[MEMORY] + rows * size
        lead = after[MEMORY]
        length = lead + after[RATE] * frames * after[SIZE]
        total = batch * rows
        tiles = batch * ((rows + ROWS - 1) // ROWS)
        panels = (layer[COLUMNS] + PANEL - 1) // PANEL
        blocks = (tiles + TILES - 1) // TILES
        groups = min(panels, (CHUNKS * threads + blocks - 1) // blocks)
        if kind == PRODUCT:
            chunks = blocks * groups
        elif kind == ATTENTION:
            chunks = batch * layer[KV_HEADS]
        else:
            chunks = min(total, CHUNKS * threads)
        chunk = _claim(counters, phase)
        while chunk < chunks + 1:
            if chunk == chunks:
                _remember(layer, after, x, span, target, length, past, next_past)
            elif kind == PRODUCT:
                _product(
                    layer,
                    weights,
                    parameters,
                    x,
                    span,
                    rows,
                    _share(panels, chunk // blocks, groups),
                    _share(tiles, chunk % blocks, blocks),
                    mine[0],
                    residual,
                    target,
                    lead,
                    length,
                )
            elif kind == ATTENTION:
                stream, group = chunk // layer[KV_HEADS], chunk % layer[KV_HEADS]
                _attention(
                    layer, x, stream, group, rows, past, next_past, position, cos, sin, mine, target, after[SIZE]
                )
            else:
                channels = layer[CHANNELS]
                first, last = _share(total, chunk, chunks)
                for row in range(first, last):
                    start = row // rows * span + row % rows * size
                    t = row // rows * length + lead + row % rows * after[SIZE]
                    if kind == NORM:
                        weight = layer[PARAMETERS]
                        _normalise(
                            x[start : start + channels].reshape(1, channels),
                            parameters[weight : weight + channels],
                            parameters[weight + channels],
                            target[t : t + channels].reshape(1, channels),
                        )
                    elif kind == GATE:
                        for i in range(channels // 2):
                            gate = x[start + i]
                            target[t + i] = gate / (float32(1) + math.exp(-gate)) * x[start + channels // 2 + i]
                    else:
                        _depthwise(layer, parameters, x[start : start + layer[TAPS] * size], target[t : t + channels])
                    for i in range(t + after[CHANNELS], t + after[SIZE]):
                        target[i] = float32(0)
            _done(counters, phase)
            chunk = _claim(counters, phase)
        _wait(counters, phase, chunks + 1)
