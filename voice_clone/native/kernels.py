"""Loops over weights, compiled by numba. Nothing here allocates, raises, or holds Python's lock.

A step of few rows takes as long as reading the weights, so they are read once for all rows, in the form in which they
are kept. That form is known by the type of the array:

| array | one weight | times |
|---|---|---|
| float32 [O, I] | itself | float32 |
| uint16 [O, I] | the upper half of a float32 (bf16) | float32 |
| int8 [O, I] | times the scale of its group of 128 | int16 |

N is 1 or, with other than int8, a multiple of 4. Activations that meet int8 are rounded to 16 bits, with one scale for each row, and the sums
of a group are exact.

Several threads run the same function, each with its number; every output is computed by one of them. They wait for each
other at a barrier: `meet`.

Shapes: N rows, I inputs, O outputs, C hidden size, H query heads, G key-value heads, D head dimension, L layers.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import float32, int16, int32, int64, njit, types, uint32
from numba.extending import intrinsic, overload

GROUP = 128  # weights of one scale; a sum of its products with 16-bit numbers fits into 32 bits
ROWS = 4  # multiplied with a weight at once; N is 1 or a multiple
SPINS = 4000  # some microseconds; then the barrier gives its core to whom it waits for

# Sums may be taken in any order, but NaN and infinity stay what they are: that is how a bad stream is found.
_FAST = {"reassoc", "contract", "nsz", "arcp"}
_OPTIONS = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": _FAST}

_yield = types.ExternalFunction("sched_yield", types.int32())  # of the C library


@intrinsic
def _add(context, counter, value):  # type: ignore[no-untyped-def]
    """Atomic: counter[0] += value; returns the new value."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        old = builder.atomic_rmw("add", array.data, arguments[1], "seq_cst")
        return builder.add(old, arguments[1])

    return int64(counter, int64), code


@intrinsic
def _load(context, counter):  # type: ignore[no-untyped-def]
    """Atomic: counter[0]."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.load_atomic(array.data, "acquire", 8)

    return int64(counter), code


@intrinsic
def _bits(context, value):  # type: ignore[no-untyped-def]
    """float32 -> its bits, int32."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], ir.IntType(32))

    return int32(float32), code


@intrinsic
def _number(context, bits):  # type: ignore[no-untyped-def]
    """Bits, int32 -> float32."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], ir.FloatType())

    return float32(int32), code


@njit(**_OPTIONS)
def _upper(half):  # type: ignore[no-untyped-def]
    """bf16 -> float32."""
    return _number(int32(uint32(half) << uint32(16)))


@njit(**_OPTIONS)
def meet(counter, threads):  # type: ignore[no-untyped-def]
    """Wait until all threads are here. counter: int64 [1], 0 at first."""
    if threads == 1:
        return
    arrived = _add(counter, 1)
    goal = (arrived + threads - 1) // threads * threads
    spins = 0
    while _load(counter) < goal:
        spins += 1
        if spins > SPINS:
            _yield()


def _prepare(weights, x, rounded, scales):  # type: ignore[no-untyped-def]
    """Bring float32 rows x [N, I] to what `weights` are multiplied with."""


@overload(_prepare)
def _prepare_overload(weights, x, rounded, scales):  # type: ignore[no-untyped-def]
    if weights.dtype == types.int8:
        return lambda weights, x, rounded, scales: _round(x, weights.shape[-1], rounded, scales)
    return lambda weights, x, rounded, scales: None


@njit(**_OPTIONS)
def _round(x, padded, rounded, scales):  # type: ignore[no-untyped-def]
    """Rows to 16 bits; zeros fill up to `padded`."""
    inputs = x.shape[1]
    for n in range(x.shape[0]):
        largest = int32(0)  # as bits: those of NaN and infinity are above all others, so they come through
        for i in range(inputs):
            largest = max(largest, int32(_bits(x[n, i]) & int32(0x7FFFFFFF)))
        size = max(_number(largest), float32(1e-30)) if _number(largest) == _number(largest) else _number(largest)
        scales[n] = size / float32(32767)
        inverse = float32(32767) / size
        for i in range(inputs):
            rounded[n, i] = int16(math.floor(x[n, i] * inverse + float32(0.5)))
        for i in range(inputs, padded):
            rounded[n, i] = int16(0)


def _product(weights, groups, x, rounded, scales, first, last, out):  # type: ignore[no-untyped-def]
    """out[n, o] = weights[o] . x[n] for o in first..last - 1. `groups`: the scales of the weights' groups."""


@overload(_product)
def _product_overload(weights, groups, x, rounded, scales, first, last, out):  # type: ignore[no-untyped-def]
    form = {types.float32: _float32, types.uint16: _bf16, types.int8: _int8}[weights.dtype]
    return lambda weights, groups, x, rounded, scales, first, last, out: form(
        weights, groups, x, rounded, scales, first, last, out
    )


@njit(**_OPTIONS)
def _float32(weights, groups, x, rounded, scales, first, last, out):  # type: ignore[no-untyped-def]
    inputs = weights.shape[1]
    for o in range(first, last):
        if x.shape[0] == 1:
            total = float32(0)
            for i in range(inputs):
                total += weights[o, i] * x[0, i]
            out[0, o] = total
            continue
        for n in range(0, x.shape[0], ROWS):
            a, b, c, d = float32(0), float32(0), float32(0), float32(0)
            for i in range(inputs):
                weight = weights[o, i]
                a += weight * x[n, i]
                b += weight * x[n + 1, i]
                c += weight * x[n + 2, i]
                d += weight * x[n + 3, i]
            out[n, o], out[n + 1, o], out[n + 2, o], out[n + 3, o] = a, b, c, d


@njit(**_OPTIONS)
def _bf16(weights, groups, x, rounded, scales, first, last, out):  # type: ignore[no-untyped-def]
    inputs = weights.shape[1]
    for o in range(first, last):
        if x.shape[0] == 1:
            total = float32(0)
            for i in range(inputs):
                total += _upper(weights[o, i]) * x[0, i]
            out[0, o] = total
            continue
        for n in range(0, x.shape[0], ROWS):
            a, b, c, d = float32(0), float32(0), float32(0), float32(0)
            for i in range(inputs):
                weight = _upper(weights[o, i])
                a += weight * x[n, i]
                b += weight * x[n + 1, i]
                c += weight * x[n + 2, i]
                d += weight * x[n + 3, i]
            out[n, o], out[n + 1, o], out[n + 2, o], out[n + 3, o] = a, b, c, d


@njit(**_OPTIONS)
def _int8(weights, groups, x, rounded, scales, first, last, out):  # type: ignore[no-untyped-def]
    for o in range(first, last):
        for n in range(x.shape[0]):
            total = float32(0)
            for group in range(groups.shape[1]):
                start = group * GROUP
                part = int32(0)
                for i in range(GROUP):  # of a length known beforehand, and in 32 bits: else it is not made vectors of
                    part = int32(part + int32(int32(weights[o, start + i]) * int32(rounded[n, start + i])))
                total += groups[o, group] * float32(part)
            out[n, o] = total * scales[n]


@njit(**_OPTIONS)
def _normalise(x, weight, eps, out):  # type: ignore[no-untyped-def]
    """Root-mean-square norm of rows [N, C]."""
    size = x.shape[1]
    for n in range(x.shape[0]):
        squares = float32(0)
        for i in range(size):
            squares += x[n, i] * x[n, i]
        factor = float32(1) / math.sqrt(squares / float32(size) + eps)
        for i in range(size):
            out[n, i] = weight[i] * (x[n, i] * factor)


@njit(**_OPTIONS)
def _turn(head, weight, eps, cos, sin):  # type: ignore[no-untyped-def]
    """Norm and rotary embedding of one head [D], in place; the first half of sin is negated."""
    size = head.shape[0]
    half = size // 2
    squares = float32(0)
    for i in range(size):
        squares += head[i] * head[i]
    factor = float32(1) / math.sqrt(squares / float32(size) + eps)
    for i in range(half):
        a = weight[i] * (head[i] * factor)
        b = weight[half + i] * (head[half + i] * factor)
        head[i] = a * cos[i] + b * sin[i]
        head[half + i] = b * cos[half + i] + a * sin[half + i]


@njit(**_OPTIONS)
def _attend(query, keys, values, length, scores, out):  # type: ignore[no-untyped-def]
    """One query [D] over keys and values [S, D], of which it sees the first `length` -> out [D]."""
    size = query.shape[0]
    scale = float32(1) / math.sqrt(float32(size))
    largest = float32(-np.inf)
    for s in range(length):
        total = float32(0)
        for i in range(size):
            total += query[i] * keys[s, i]
        scores[s] = total * scale
        largest = max(largest, scores[s])
    for i in range(size):
        out[i] = float32(0)
    whole = float32(0)
    for s in range(length):
        share = math.exp(scores[s] - largest)
        whole += share
        for i in range(size):
            out[i] += share * values[s, i]
    for i in range(size):
        out[i] /= whole


@njit(**_OPTIONS)
def _silu(x):  # type: ignore[no-untyped-def]
    return x / (float32(1) + math.exp(-x))


@njit(**_OPTIONS)
def _share(count, thread, threads):  # type: ignore[no-untyped-def]
    """Which of `count` things a thread does: first, last."""
    return count * thread // threads, count * (thread + 1) // threads


@njit(**_OPTIONS)
def linear(thread, threads, counter, weights, groups, x, own, out):  # type: ignore[no-untyped-def]
    """x [N, I] -> out [N, O]. `own`: buffers of each thread, see `stack`."""
    rounded, scales = own
    _prepare(weights, x, rounded[thread], scales[thread])
    first, last = _share(weights.shape[0], thread, threads)
    _product(weights, groups, x, rounded[thread], scales[thread], first, last, out)
    meet(counter, threads)


@njit(**_OPTIONS)
def stack(thread, threads, counter, weights, norms, eps, cache, where, own, common, x, out):  # type: ignore[no-untyped-def]
    """All decoder layers and the last norm, on N new positions of any streams.

    Args:
        thread, threads: this thread's number and how many there are.
        counter: of `meet`.
        weights: of the projections qkv, o, gate and up, down: each the weights of all layers, [L, O, ...], and the
            scales of their groups.
        norms: before attention [L, C], before the feed-forward part [L, C], of queries [L, D], of keys [L, D], last [C].
        cache: keys and values [L, slots, G, positions, D], cos and sin [positions, D].
        where: slot and position of each row, int64 [N]. A row sees its slot's positions up to its own, those that
            come in the same call included.
        own: of each thread: rows int16, their scales, rows float32 [N, C], attention scores.
        common: float32 rows of queries, keys and values; of the attention's results; of the feed-forward part; of a
            product. Shared by all threads.
        x: [N, C]; lost.
        out: [N, C], the normed hidden states.
    """
    (qkv, qkv_groups), (o, o_groups), (gate_up, gate_up_groups), (down, down_groups) = weights
    attention_norm, mlp_norm, query_norm, key_norm, last_norm = norms
    keys, values, cos, sin = cache
    slots, positions = where
    rounded, scales, rows, scores = own[0][thread], own[1][thread], own[2][thread], own[3][thread]
    heads, attended, hidden, product = common
    size, inner, dim, kv_heads = x.shape[1], hidden.shape[1], cos.shape[1], keys.shape[2]
    query_heads = attended.shape[1] // dim
    ratio = query_heads // kv_heads
    count = x.shape[0]
    for layer in range(qkv.shape[0]):
        _normalise(x, attention_norm[layer], eps, rows)
        _prepare(qkv, rows, rounded, scales)
        first, last = _share(qkv.shape[1], thread, threads)
        _product(qkv[layer], qkv_groups[layer], rows, rounded, scales, first, last, heads)
        meet(counter, threads)

        first, last = _share(kv_heads, thread, threads)
        for g in range(first, last):
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
        meet(counter, threads)

        _prepare(o, attended, rounded, scales)
        first, last = _share(size, thread, threads)
        _product(o[layer], o_groups[layer], attended, rounded, scales, first, last, product)
        for n in range(count):
            for i in range(first, last):
                x[n, i] += product[n, i]
        meet(counter, threads)

        _normalise(x, mlp_norm[layer], eps, rows)
        _prepare(gate_up, rows, rounded, scales)
        first, last = _share(inner, thread, threads)
        _product(gate_up[layer], gate_up_groups[layer], rows, rounded, scales, first, last, product)
        _product(
            gate_up[layer],
            gate_up_groups[layer],
            rows,
            rounded,
            scales,
            inner + first,
            inner + last,
            product,
        )
        for n in range(count):
            for i in range(first, last):
                hidden[n, i] = _silu(product[n, i]) * product[n, inner + i]
        meet(counter, threads)

        _prepare(down, hidden, rounded, scales)
        first, last = _share(size, thread, threads)
        _product(down[layer], down_groups[layer], hidden, rounded, scales, first, last, product)
        for n in range(count):
            for i in range(first, last):
                x[n, i] += product[n, i]
        meet(counter, threads)
    if thread == 0:
        _normalise(x, last_norm, eps, out)
