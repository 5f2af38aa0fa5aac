"""Causal attention over a window with rotary embedding (Su et al. 2021), as a layer of a chain."""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import math

from numba import float32

from voice_clone.native.arithmetic import attend
from voice_clone.native.codec.layer_table import CHANNELS, HEADS, KV_HEADS, SIZE, STATE, WINDOW
from voice_clone.native.compilation import compiled


@compiled
def _apply_rotary(head, cos, sin):
    """Rotary embedding of one head [D], in place: dimensions i and i + D / 2 rotate together. cos, sin: [D / 2]."""
    half = head.shape[0] // 2
    for i in range(half):
        a, b = head[i], head[half + i]
        head[i] = a * cos[i] - b * sin[i]
        head[half + i] = b * cos[i] + a * sin[i]


@compiled
def window_attention(layer, x, stream, group, rows, past, next_past, position, cos, sin, own, target, width):
    """The queries of one key-value head of one stream attend to their windows.

    layer: a row of the layer table.
    x: float32 [B, rows, SIZE], flat: queries, keys and values; the queries are overwritten.
    past, next_past: the streams' states [B, S]; a state has the last WINDOW - 1 rotated keys of each head, then the
    values.
    position: int64 [B], of the streams' first rows. cos, sin: float32 [B, rows, D / 2].
    own: this thread's memory for keys, values and scores.
    target: float32 [B, rows, width], flat; H * D numbers of a row are results, the others padding.
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
        _apply_rotary(new, cos[stream, n], sin[stream, n])
    for i in range(part):
        next_past[stream, old_keys + i] = keys[rows * dim + i]
        next_past[stream, old_values + i] = values[rows * dim + i]
    ratio = heads // kv_heads
    for n in range(rows):
        seen = min(before, position[stream] + n) + 1
        first, last = (before + n + 1 - seen) * dim, (before + n + 1) * dim
        for h in range(group * ratio, (group + 1) * ratio):
            start = (stream * rows + n) * size + h * dim
            query = x[start : start + dim]
            _apply_rotary(query, cos[stream, n], sin[stream, n])
            start = (stream * rows + n) * width + h * dim
            seen_keys, seen_values = keys[first:last].reshape(seen, dim), values[first:last].reshape(seen, dim)
            attend(query, seen_keys, seen_values, seen, scores, target[start : start + dim])


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
