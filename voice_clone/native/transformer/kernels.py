"""Loops over weights, compiled by numba. Nothing here allocates, raises, or holds Python's lock.

Several threads run the same function. Its phases are cut into chunks, which they claim one by one; a phase has ended
when all its chunks are done. So nobody waits for a thread that the system has put aside, unless it holds a chunk. A
thread that comes late finds nothing to claim: it may read what has changed meanwhile, but nothing uses what it makes.

Shapes: N rows, I inputs, O outputs, C hidden size, H query heads, G key-value heads, D head dimension, L layers.
"""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

import math

import numpy as np
from numba import float32, int64, njit, types
from numba.extending import intrinsic

from voice_clone.native.matrix.arithmetic import dot, fma, total
from voice_clone.native.matrix.dots import PANEL
from voice_clone.native.matrix.products import multiply, prepare, width
from voice_clone.native.transformer.exponential import exponential, silu

CHUNKS = 16  # of a phase, for each thread: small ones, so that threads end at the same time
LAYER_PHASES = 5
SPINS = 4000  # some microseconds; then a thread that waits gives its core away

_OPTIONS = {"nogil": True, "cache": True, "error_model": "numpy"}  # no fast arithmetic: see arithmetic.py

_yield = types.ExternalFunction("sched_yield", types.int32())  # of the C library


@intrinsic
def _add(context, counters, index, value):
    """Atomic: counters[index] += value; returns what it was. counters: int64 [...]."""

    def code(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _at(context, builder, signature, arguments), arguments[2], "seq_cst")

    return int64(counters, int64, int64), code


@intrinsic
def _read(context, counters, index):
    """Atomic: counters[index]."""

    def code(context, builder, signature, arguments):
        return builder.load_atomic(_at(context, builder, signature, arguments), "acquire", 8)

    return int64(counters, int64), code


def _at(context, builder, signature, arguments):
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


@njit(**_OPTIONS)
def _claim(counters, phase):
    """The next chunk of a phase that nobody has. counters: int64, two a phase: claimed, done."""
    return _add(counters, 2 * phase, int64(1))


@njit(**_OPTIONS)
def _done(counters, phase):
    _add(counters, 2 * phase + 1, int64(1))


@njit(**_OPTIONS)
def _take(counters, phase, chunks, thread):
    """As `_claim`, every second thread from the last chunk downwards, or -1: so each of two reads on where it was.

    One counter has both: the chunks from behind are its upper 32 bits.
    """
    backwards = thread % 2 == 1
    taken = _add(counters, 2 * phase, int64(1) << 32 if backwards else int64(1))
    before, behind = taken & int64(0xFFFFFFFF), taken >> 32
    if before + behind >= chunks:
        return int64(-1)
    return chunks - 1 - behind if backwards else before


@njit(**_OPTIONS)
def _wait(counters, phase, chunks):
    """Until all chunks of a phase are done."""
    spins = 0
    while _read(counters, 2 * phase + 1) < chunks:
        spins += 1
        if spins > SPINS:
            _yield()


@njit(**_OPTIONS)
def _normalise(x, weight, eps, out):
    """Root-mean-square norm of rows [N, C]."""
    size = x.shape[1]
    for n in range(x.shape[0]):
        factor = float32(1) / math.sqrt(dot(x[n], x[n]) / float32(size) + eps)
        for i in range(size):
            out[n, i] = weight[i] * (x[n, i] * factor)


@njit(**_OPTIONS)
def _turn(head, weight, eps, cos, sin):
    """Norm and rotary embedding of one head [D], in place; the first half of sin is negated."""
    size = head.shape[0]
    half = size // 2
    factor = float32(1) / math.sqrt(dot(head, head) / float32(size) + eps)
    for i in range(half):
        a = weight[i] * (head[i] * factor)
        b = weight[half + i] * (head[half + i] * factor)
        head[i] = a * cos[i] + b * sin[i]
        head[half + i] = b * cos[half + i] + a * sin[half + i]


@njit(**_OPTIONS)
def _attend(query, keys, values, length, scores, out):
    """One query [D] over keys and values [S, D], of which it sees the first `length` -> out [D]."""
    size = query.shape[0]
    scale = float32(1) / math.sqrt(float32(size))
    largest = float32(-np.inf)
    for s in range(length):
        scores[s] = dot(query, keys[s]) * scale
        largest = max(largest, scores[s])
    for i in range(size):
        out[i] = float32(0)
    for s in range(length):
        scores[s] = exponential(scores[s] - largest)
    for s in range(length):
        for i in range(size):
            out[i] = fma(scores[s], values[s, i], out[i])
    part = float32(1) / total(scores[:length])
    for i in range(size):
        out[i] *= part


@njit(**_OPTIONS)
def _share(count, chunk, chunks):
    """Which of `count` things are in a chunk: first, last."""
    return count * chunk // chunks, count * (chunk + 1) // chunks


@njit(**_OPTIONS)
def _outputs(count, chunk, chunks):
    """Which of `count` outputs are in a chunk, whole panels: first, last."""
    first, last = _share((count + PANEL - 1) // PANEL, chunk, chunks)
    return PANEL * first, min(PANEL * last, count)


@njit(**_OPTIONS)
def _prepared(weights, x, own):
    """Rows x [N, inputs] ready for `multiply`, in a thread's own memory."""
    flat, scales = own
    inputs = width(weights)
    prepared = flat[: x.shape[0] * inputs].reshape(x.shape[0], inputs)
    prepare(weights, x, prepared, scales)
    return prepared


@njit(**_OPTIONS)
def _multiply(thread, counters, phase, chunks, weights, groups, x, own, out):
    """A phase: out [N, O] = x [N, inputs] times the weights; `out` may have more rows."""
    prepared = _prepared(weights, x, own)
    done = int64(0)
    chunk = _take(counters, phase, chunks, thread)
    while chunk >= 0:
        first, last = _outputs(out.shape[1], chunk, chunks)
        multiply(weights, groups, prepared, own[1], first, last, out)
        done += 1
        chunk = _take(counters, phase, chunks, thread)
    _add(counters, 2 * phase + 1, done)
    _wait(counters, phase, chunks)


@njit(**_OPTIONS)
def _multiply_add(thread, counters, phase, chunks, weights, groups, x, own, product, residual):
    """A phase: residual [N, O] += x [N, inputs] times the weights."""
    prepared = _prepared(weights, x, own)
    done = int64(0)
    chunk = _take(counters, phase, chunks, thread)
    while chunk >= 0:
        first, last = _outputs(residual.shape[1], chunk, chunks)
        multiply(weights, groups, prepared, own[1], first, last, product)
        for n in range(x.shape[0]):
            for i in range(first, last):
                residual[n, i] += product[n, i]
        done += 1
        chunk = _take(counters, phase, chunks, thread)
    _add(counters, 2 * phase + 1, done)
    _wait(counters, phase, chunks)


@njit(**_OPTIONS)
def _multiply_gated(thread, counters, phase, chunks, weights, groups, x, own, product, out):
    """A phase: out [N, O] = silu(gate) * up, where gate and up [N, O] are x [N, inputs] times the weights."""
    prepared = _prepared(weights, x, own)
    inner = out.shape[1]
    done = int64(0)
    chunk = _take(counters, phase, chunks, thread)
    while chunk >= 0:
        first, last = _outputs(inner, chunk, chunks)
        multiply(weights, groups, prepared, own[1], first, last, product)
        multiply(weights, groups, prepared, own[1], inner + first, inner + last, product)
        for n in range(x.shape[0]):
            for i in range(first, last):
                out[n, i] = silu(product[n, i]) * product[n, inner + i]
        done += 1
        chunk = _take(counters, phase, chunks, thread)
    _add(counters, 2 * phase + 1, done)
    _wait(counters, phase, chunks)


@njit(**_OPTIONS)
def linear(thread, threads, counters, weights, groups, x, own, out):
    """x [N, inputs] -> out [N, O]. One phase. `own`: of each thread, prepared rows [N * I] and their scales."""
    _multiply(thread, counters, 0, CHUNKS * threads, weights, groups, x, (own[0][thread], own[1][thread]), out)


@njit(**_OPTIONS)
def layers(thread, threads, counters, phase, weights, norms, eps, cache, where, own, common, x):
    """All decoder layers on N new positions of any streams: x [N, C] becomes what goes into the last norm.

    Five phases a layer, from `phase` on. The other arguments are those of `stack`; its memory may be for more rows.
    """
    (qkv, qkv_groups), (o, o_groups), (gate_up, gate_up_groups), (down, down_groups) = weights
    attention_norm, mlp_norm, query_norm, key_norm, _ = norms
    keys, values, cos, sin = cache
    slots, positions = where
    count = x.shape[0]
    mine = own[0][thread], own[1][thread]
    normed, scores = own[2][thread][:count], own[3][thread]
    heads, attended, gates, hidden, product = common
    attended, hidden = attended[:count], hidden[:count]
    dim, kv_heads = cos.shape[1], keys.shape[2]
    query_heads = attended.shape[1] // dim
    ratio = query_heads // kv_heads
    chunks = CHUNKS * threads
    for layer in range(qkv.shape[0]):
        _normalise(x, attention_norm[layer], eps, normed)
        _multiply(thread, counters, phase, chunks, qkv[layer], qkv_groups[layer], normed, mine, heads)

        g = _claim(counters, phase + 1)
        while g < kv_heads:
            k_start, v_start = (query_heads + g) * dim, (query_heads + kv_heads + g) * dim
            for n in range(count):
                slot, position = slots[n], positions[n]
                key = heads[n, k_start : k_start + dim]
                _turn(key, key_norm[layer], eps, cos[position], sin[position])
                for i in range(dim):
                    keys[layer, slot, g, position, i] = key[i]
                    values[layer, slot, g, position, i] = heads[n, v_start + i]
            for n in range(count):
                slot, position = slots[n], positions[n]
                for h in range(g * ratio, (g + 1) * ratio):
                    query = heads[n, h * dim : (h + 1) * dim]
                    _turn(query, query_norm[layer], eps, cos[position], sin[position])
                    result = attended[n, h * dim : (h + 1) * dim]
                    _attend(query, keys[layer, slot, g], values[layer, slot, g], position + 1, scores, result)
            _done(counters, phase + 1)
            g = _claim(counters, phase + 1)
        _wait(counters, phase + 1, kv_heads)

        _multiply_add(thread, counters, phase + 2, chunks, o[layer], o_groups[layer], attended, mine, product, x)
        _normalise(x, mlp_norm[layer], eps, normed)
        _multiply_gated(
            thread, counters, phase + 3, chunks, gate_up[layer], gate_up_groups[layer], normed, mine, gates, hidden
        )
        _multiply_add(thread, counters, phase + 4, chunks, down[layer], down_groups[layer], hidden, mine, product, x)
        phase += LAYER_PHASES


@njit(**_OPTIONS)
def stack(thread, threads, counters, weights, norms, eps, cache, where, own, common, x, out):
    """All decoder layers and the last norm, on N new positions of any streams.

    Args:
        thread, threads: this thread's number and how many there are.
        counters: int64 [10 L], zeros.
        weights: of the projections qkv, o, gate and up, down: each the weights of all layers, [L, O, I], and
            the scales of their groups.
        norms: before attention and before the feed-forward part [L, C], of queries and of keys [L, D], the last [C].
        cache: keys and values [L, slots, G, positions, D], cos and sin [positions, D].
        where: slot and position of each row, int64 [N]. A row sees its slot's positions up to its own, those that
            come in the same call included.
        own: of each thread: prepared rows [N * I], their scales, normed rows float32 [N, C], attention scores.
        common: float32 rows that the threads share: queries, keys and values; the attention's results; gate and up; the
            feed-forward part between; a product.
        x: [N, C]; lost.
        out: [N, C], the normed hidden states.
    """
    layers(thread, threads, counters, 0, weights, norms, eps, cache, where, own, common, x)
    if thread == 0:
        _normalise(x, norms[4], eps, out)
