"""A chain of layers over rows as one call of native code.

See table.py for the table of layers, convolution.py for products, minimal_filtering.py for those with fewer
multiplications, and kernels.py for threads.

A layer reads one of two buffers and writes the other, so each layer is one phase. A buffer holds for each of B streams
what its reader remembers of earlier rows, then the new rows: so a convolution sees its past before its present, and
reads on over the border between them. Besides there is the residual signal.

What is remembered comes from the streams' state and goes into their next one: [B, S], each layer at its own place.
"""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

import math

from numba import float32, njit

from voice_clone.native.codec.convolution import PANEL, ROWS
from voice_clone.native.codec.minimal_filtering import filtered, transform
from voice_clone.native.matrix.arithmetic import dot, fma, total
from voice_clone.native.matrix.dense import product
from voice_clone.native.matrix.table import (
    ATTENTION,
    CHANNELS,
    COLUMNS,
    FILTERED,
    GATE,
    GROUPS,
    KIND,
    KV_HEADS,
    MEMORY,
    NORM,
    PARAMETERS,
    PRODUCT,
    RATE,
    SIZE,
    STATE,
    TAPS,
)
from voice_clone.native.transformer.attention import attention
from voice_clone.native.transformer.exponential import silu
from voice_clone.native.transformer.kernels import _OPTIONS, _claim, _done, _normalise, _share, _wait

TILES = 32  # of a product, that pass by while a part of its matrix stays in a core's cache
MOST_GROUPS = 128  # of minimal filtering, likewise; half as many or twice as many take as long
CHUNKS = 16  # of a phase, for each thread, where there is so much to do


@njit(**_OPTIONS)
def _depthwise(layer, parameters, x, out):
    """A row's depthwise convolution x [TAPS * SIZE] and the layer norm behind it -> out [CHANNELS]."""
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
        own: of each thread: sums of a block of rows; keys; values; attention scores; the forms of a block of groups.
        frames: of each stream.
        turns: position of the streams' next frames [B]; cos and sin [B, frames, D / 2].
        pasts: the streams' state [B, S] and their next one, to be filled.
    """
    position, cos, sin = turns
    past, next_past = pasts
    batch = past.shape[0]
    sums, forms = own[0][thread], own[4][thread]
    mine = own[1][thread], own[2][thread], own[3][thread]
    for phase in range(layers.shape[0] - 1):
        layer, after = layers[phase], layers[phase + 1]
        kind = layer[KIND]
        x, target = buffers[phase % 2], buffers[(phase + 1) % 2]
        rows, size = layer[RATE] * frames, layer[SIZE]
        span = layer[MEMORY] + rows * size
        lead = after[MEMORY]
        length = lead + after[RATE] * frames * after[SIZE]
        rows_of_all = batch * rows
        things, most = batch * ((rows + ROWS - 1) // ROWS), TILES
        if kind == FILTERED:
            things, most = batch * frames * layer[GROUPS], MOST_GROUPS
        panels = (layer[COLUMNS] + PANEL - 1) // PANEL
        blocks = (things + most - 1) // most
        shares = min(panels, (CHUNKS * threads + blocks - 1) // blocks)
        if kind in (PRODUCT, FILTERED):
            chunks = blocks * shares
        elif kind == ATTENTION:
            chunks = batch * layer[KV_HEADS]
        else:
            chunks = min(rows_of_all, CHUNKS * threads)
        held = -1  # the block whose forms this thread has
        chunk = _claim(counters, phase)
        while chunk < chunks + 1:
            if chunk == chunks:
                _remember(layer, after, x, span, target, length, past, next_past)
            elif kind == PRODUCT:
                product(
                    layer,
                    weights,
                    parameters,
                    x,
                    span,
                    rows,
                    _share(panels, chunk // blocks, shares),
                    _share(things, chunk % blocks, blocks),
                    sums,
                    residual,
                    target,
                    lead,
                    length,
                )
            elif kind == FILTERED:
                block = chunk // shares
                groups = _share(things, block, blocks)
                if block != held:
                    transform(layer, x, span, frames, groups, forms)
                    held = block
                filtered(
                    layer,
                    weights,
                    parameters,
                    forms,
                    frames,
                    _share(panels, chunk % shares, shares),
                    groups,
                    sums,
                    residual,
                    target,
                    lead,
                    length,
                )
            elif kind == ATTENTION:
                stream, group = chunk // layer[KV_HEADS], chunk % layer[KV_HEADS]
                attention(layer, x, stream, group, rows, past, next_past, position, cos, sin, mine, target, after[SIZE])
            else:
                channels = layer[CHANNELS]
                first, last = _share(rows_of_all, chunk, chunks)
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
                            target[t + i] = silu(x[start + i]) * x[start + channels // 2 + i]
                    else:
                        _depthwise(layer, parameters, x[start : start + layer[TAPS] * size], target[t : t + channels])
                    for i in range(t + after[CHANNELS], t + after[SIZE]):
                        target[i] = float32(0)
            _done(counters, phase)
            chunk = _claim(counters, phase)
        _wait(counters, phase, chunks + 1)
