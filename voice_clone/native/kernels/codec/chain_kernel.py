"""A chain of layers over rows as one native function that several threads run; see work_sharing.py.

A layer reads one of two buffers and writes the other, so each layer is one phase. For each of B streams a buffer holds
the earlier rows that its reader remembers, then the new rows. So a convolution reads past and present rows as one
sequence. Besides there is the residual signal, one row for each row of a product's outputs.

Remembered rows come from the streams' state [B, S] and go into their next state, each layer's at a place of its own.
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import math

from numba import float32

from voice_clone.native.codec.layer_table import (
    ALIBI,
    ATTENTION,
    CHANNELS,
    COLUMNS,
    FILTER,
    GATE,
    GROUPS,
    HEADS,
    KIND,
    KV_HEADS,
    MEMORY,
    NORM,
    PARAMETERS,
    PRODUCT,
    QK_NORM,
    RATE,
    SIZE,
    STATE,
    TAPS,
    WINDOW,
    WINOGRAD,
)
from voice_clone.native.kernels.arithmetic import (
    dot,
    fma,
    matrix,
    rms_norm,
    rotate,
    scaled_products,
    silu,
    total,
    weigh,
)
from voice_clone.native.kernels.codec.filter import filter_row
from voice_clone.native.kernels.codec.product import product
from voice_clone.native.kernels.codec.winograd import transform_inputs, winograd
from voice_clone.native.kernels.compilation import compiled
from voice_clone.native.kernels.work_sharing import claim, finish, share, wait
from voice_clone.native.sizes import BLOCK_GROUPS, BLOCK_TILES, PANEL_OUTPUTS, TILE_ROWS


@compiled
def window_attention(
    layer, parameters, x, stream, group, rows, past, next_past, position, cos, sin, own, target, width
):
    """Causal attention: the queries of one key-value head of one stream attend to their windows, or to all before them.

    layer: a row of the layer table.
    x: float32 [B, rows, SIZE], flat: queries, keys and values; the queries are overwritten.
    past, next_past: the streams' states [B, S]; a state has the last WINDOW - 1 rotated keys of each head, then the
    values.
    position: int64 [B], of the streams' first frames. cos, sin: float32 [B, rows, D / 2]; not read with ALIBI.
    own: this thread's memory for keys, values and scores.
    target: float32 [B, rows, width], flat; H * D numbers of a row are results, the others padding.
    """
    keys, values, scores = own
    size, heads, kv_heads = layer[SIZE], layer[HEADS], layer[KV_HEADS]
    before = max(0, layer[WINDOW] - 1)
    dim = layer[CHANNELS] // (heads + 2 * kv_heads)
    part = before * dim
    if group == 0:
        for n in range(stream * rows, (stream + 1) * rows):
            for i in range(n * width + heads * dim, (n + 1) * width):
                target[i] = float32(0)
    old_keys = layer[STATE] + group * part
    old_values = old_keys + kv_heads * part
    for i in range(part):  # slices would be seconds more to compile: the text of the error if their sizes differed
        keys[i] = past[stream, old_keys + i]
        values[i] = past[stream, old_values + i]
    for n in range(rows):
        row = (stream * rows + n) * size
        key, value = row + (heads + group) * dim, row + (heads + kv_heads + group) * dim
        new = keys[part + n * dim : part + (n + 1) * dim]
        for i in range(dim):
            new[i] = x[key + i]
            values[part + n * dim + i] = x[value + i]
        if not layer[ALIBI]:
            rotate(new, cos[stream, n], sin[stream, n])
    for i in range(part):
        next_past[stream, old_keys + i] = keys[rows * dim + i]
        next_past[stream, old_values + i] = values[rows * dim + i]
    ratio = heads // kv_heads
    for n in range(rows):
        seen = n + 1 if layer[WINDOW] == 0 else min(before, position[stream] * layer[RATE] + n) + 1
        first, last = (before + n + 1 - seen) * dim, (before + n + 1) * dim
        for h in range(group * ratio, (group + 1) * ratio):
            start = (stream * rows + n) * size + h * dim
            query = x[start : start + dim]
            if not layer[ALIBI]:
                rotate(query, cos[stream, n], sin[stream, n])
            start = (stream * rows + n) * width + h * dim
            seen_keys, seen_values = matrix(keys[first:last], seen, dim), matrix(values[first:last], seen, dim)
            scaled_products(query, seen_keys, seen, scores)
            if layer[ALIBI]:
                slope = parameters[layer[PARAMETERS] + h]
                for s in range(seen):
                    scores[s] += slope * float32(s + 1 - seen)
            weigh(scores, seen_values, seen, target[start : start + dim])


@compiled
def rotary_tables(position, frequencies, cos, sin):
    """Fill rotary tables, float32 [B, T, D / 2], for the positions from `position`, int64 [B], on.

    frequencies: float32 [D / 2], radians per position.
    """
    for b in range(cos.shape[0]):
        for n in range(cos.shape[1]):
            for i in range(cos.shape[2]):
                angle = float32(position[b] + n) * frequencies[i]
                cos[b, n, i] = math.cos(angle)
                sin[b, n, i] = math.sin(angle)


CHUNKS_PER_THREAD = 16  # of a phase, if it has so much work


@compiled
def _depthwise(layer, parameters, x, out):
    """One row of a depthwise convolution, x [TAPS * SIZE], and the layer norm after it -> out [CHANNELS]."""
    size, channels, taps = layer[SIZE], layer[CHANNELS], layer[TAPS]
    start = layer[PARAMETERS]
    bias, norm = start + taps * channels, start + (taps + 1) * channels
    for i in range(channels):
        out[i] = parameters[bias + i]
    for tap in range(taps):
        for i in range(channels):
            out[i] = fma(parameters[start + tap * channels + i], x[tap * size + i], out[i])
    mean = total(out) / float32(channels)
    for i in range(channels):
        out[i] -= mean
    factor = float32(1) / math.sqrt(dot(out, out) / float32(channels) + parameters[norm + 2 * channels])
    for i in range(channels):
        out[i] = fma(out[i] * factor, parameters[norm + i], parameters[norm + channels + i])


@compiled
def _move_memory(layer, after, x, span, target, length, past, next_past):
    """Write what a layer remembers to the next state, and what the layer after it remembers from the state to `target`.

    The other arguments are those of `product.product`.
    """
    memory, at = layer[MEMORY], layer[STATE]
    for b in range(past.shape[0]):
        for i in range(memory):
            next_past[b, at + i] = x[(b + 1) * span - memory + i]
    memory, at = after[MEMORY], after[STATE]
    for b in range(past.shape[0]):
        for i in range(memory):
            target[b * length + i] = past[b, at + i]


@compiled
def _row_layer(layer, after, parameters, x, span, rows, target, lead, length, chunk_rows):
    """A norm, a gate, a depthwise convolution or a filter, for some of the rows of all streams.

    chunk_rows: (first, last + 1). The other arguments are those of `product.product`.
    """
    kind, size, channels = layer[KIND], layer[SIZE], layer[CHANNELS]
    for row in range(*chunk_rows):
        start = row // rows * span + row % rows * size
        t = row // rows * length + lead + row % rows * after[SIZE]
        if kind == NORM:
            weight = layer[PARAMETERS]
            rms_norm(
                matrix(x[start : start + channels], 1, channels),
                parameters[weight : weight + channels],
                parameters[weight + channels],
                matrix(target[t : t + channels], 1, channels),
            )
        elif kind == QK_NORM:
            dim = channels // (layer[HEADS] + 2 * layer[KV_HEADS])
            queries, keys = layer[HEADS] * dim, layer[KV_HEADS] * dim
            weight, done = layer[PARAMETERS], 0
            eps = parameters[weight + queries + keys]
            for count in (queries, keys):
                rms_norm(
                    matrix(x[start + done : start + done + count], 1, count),
                    parameters[weight + done : weight + done + count],
                    eps,
                    matrix(target[t + done : t + done + count], 1, count),
                )
                done += count
            for i in range(done, channels):
                target[t + i] = x[start + i]
        elif kind == FILTER:
            filter_row(layer, parameters, x, start, target, t)
        elif kind == GATE:
            for i in range(channels // 2):
                target[t + i] = silu(x[start + i]) * x[start + channels // 2 + i]
        else:
            _depthwise(layer, parameters, x[start : start + layer[TAPS] * size], target[t : t + channels])
        for i in range(t + after[CHANNELS], t + after[SIZE]):
            target[i] = float32(0)


@compiled
def run_chain(
    thread, threads, counters, layers, weights, parameters, buffers, residual, per_thread, frames, rotary, states
):
    """All layers on the next frames of B streams. A function for `ThreadPool.run`.

    Args:
        thread, threads: this thread's number, and how many threads there are.
        counters: int64 [2 * layers], zeros.
        layers: the layer table, int64 [layers + 1, FIELDS]; the last row is of kind END.
        weights: float32, the products' matrices, one after the other.
        parameters: float32, all other parameters.
        buffers: two, float32. The first one holds what the first layer remembers and the rows that it reads. The
            result is in the first buffer if the number of layers is even, else in the second one.
        residual: float32, memory for the residual signal.
        per_thread: float32, memory of each thread: sums of a block of rows; keys; values; attention scores; transformed
            inputs of a block of groups.
        frames: how many frames of each stream.
        rotary: the position of the streams' first frames, int64 [B]; cos and sin, float32 [B, frames, D / 2].
        states: the streams' states, float32 [B, S], and their next states, to be filled.
    """
    position, cos, sin = rotary
    past, next_past = states
    batch = past.shape[0]
    sums, transformed = per_thread[0][thread], per_thread[4][thread]
    own = per_thread[1][thread], per_thread[2][thread], per_thread[3][thread]
    for phase in range(layers.shape[0] - 1):
        layer, after = layers[phase], layers[phase + 1]
        kind = layer[KIND]
        x, target = buffers[phase % 2], buffers[(phase + 1) % 2]
        rows, size = layer[RATE] * frames, layer[SIZE]
        span = layer[MEMORY] + rows * size
        lead = after[MEMORY]
        length = lead + after[RATE] * frames * after[SIZE]
        # A chunk of a product is a block of tiles (of groups, for a Winograd convolution) and a share of the panels.
        items, block_items = batch * ((rows + TILE_ROWS - 1) // TILE_ROWS), BLOCK_TILES
        if kind == WINOGRAD:
            items, block_items = batch * frames * layer[GROUPS], BLOCK_GROUPS
        panels = (layer[COLUMNS] + PANEL_OUTPUTS - 1) // PANEL_OUTPUTS
        blocks = (items + block_items - 1) // block_items
        shares = min(panels, (CHUNKS_PER_THREAD * threads + blocks - 1) // blocks)
        if kind in (PRODUCT, WINOGRAD):
            chunks = blocks * shares
        elif kind == ATTENTION:
            chunks = batch * layer[KV_HEADS]
        else:
            chunks = min(batch * rows, CHUNKS_PER_THREAD * threads)
        transformed_block = -1  # the block whose inputs this thread has transformed
        chunk = claim(counters, phase)
        while chunk < chunks + 1:
            if chunk == chunks:  # one chunk more than the layer has
                _move_memory(layer, after, x, span, target, length, past, next_past)
            elif kind == PRODUCT:
                product(
                    layer,
                    weights,
                    parameters,
                    x,
                    span,
                    rows,
                    share(panels, chunk // blocks, shares),
                    share(items, chunk % blocks, blocks),
                    sums,
                    residual,
                    target,
                    lead,
                    length,
                )
            elif kind == WINOGRAD:
                block = chunk // shares
                groups = share(items, block, blocks)
                if block != transformed_block:
                    transform_inputs(layer, x, span, frames, groups, transformed)
                    transformed_block = block
                winograd(
                    layer,
                    weights,
                    parameters,
                    transformed,
                    frames,
                    share(panels, chunk % shares, shares),
                    groups,
                    sums,
                    residual,
                    target,
                    lead,
                    length,
                )
            elif kind == ATTENTION:
                stream, group = chunk // layer[KV_HEADS], chunk % layer[KV_HEADS]
                window_attention(
                    layer,
                    parameters,
                    x,
                    stream,
                    group,
                    rows,
                    past,
                    next_past,
                    position,
                    cos,
                    sin,
                    own,
                    target,
                    after[SIZE],
                )
            else:
                chunk_rows = share(batch * rows, chunk, chunks)
                _row_layer(layer, after, parameters, x, span, rows, target, lead, length, chunk_rows)
            finish(counters, phase, 1)
            chunk = claim(counters, phase)
        wait(counters, phase, chunks + 1)
