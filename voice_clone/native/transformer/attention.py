"""Causal attention over a window with rotary embedding, as a layer of a chain."""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

import math

from numba import float32, njit

from voice_clone.native.matrix.table import CHANNELS, HEADS, KV_HEADS, SIZE, STATE, WINDOW
from voice_clone.native.transformer.kernels import _OPTIONS, _attend


@njit(**_OPTIONS)
def _turn(head, cos, sin):
    """Rotary embedding of one head [D], in place: dimension i turns with i + D / 2."""
    half = head.shape[0] // 2
    for i in range(half):
        a, b = head[i], head[half + i]
        head[i] = a * cos[i] - b * sin[i]
        head[half + i] = b * cos[i] + a * sin[i]


@njit(**_OPTIONS)
def attention(layer, x, stream, group, rows, past, next_past, position, cos, sin, own, target, width):
    """The queries of one key-value head over its window.

    x: [B, rows, SIZE] queries, keys and values; target: [B, rows, width], of which H * D are results. past, next_past:
    [B, S]; a state has the last WINDOW - 1 turned keys of each head, then the values. position: of the streams' first
    rows, [B]; cos, sin: [B, rows, D / 2].
    """
    keys, values, scores = own
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
            seen_keys, seen_values = keys[first:last].reshape(seen, dim), values[first:last].reshape(seen, dim)
            _attend(query, seen_keys, seen_values, seen, scores, target[start : start + dim])


@njit(**_OPTIONS)
def angles(position, frequencies, cos, sin):
    """Rotary tables [B, T, D / 2] of positions from `position` [B] on; frequencies: [D / 2]."""
    for b in range(cos.shape[0]):
        for n in range(cos.shape[1]):
            for i in range(cos.shape[2]):
                angle = float32(position[b] + n) * frequencies[i]
                cos[b, n, i] = math.cos(angle)
                sin[b, n, i] = math.sin(angle)
