"""Embeddings and decoder layers of a talker as native functions; see work_sharing.py for the threads.

Nothing here allocates, raises, or takes the GIL.

Shapes: N rows, O outputs, I inputs, C hidden size, H query heads, G key-value heads, D head dimension, L layers.
A table of embeddings is float32, or the bits of bf16 as uint16; see `weights.as_array`.
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import math

from numba import float32, int32, types
from numba.extending import overload

from voice_clone.native.kernels.arithmetic import attend, dot, float_from_bits, norm, rotate
from voice_clone.native.kernels.compilation import compiled
from voice_clone.native.kernels.matrix.products import CHUNKS_PER_THREAD, gated_phase, product_phase, residual_phase
from voice_clone.native.kernels.work_sharing import claim, finish, wait
from voice_clone.native.sizes import LAYER_PHASES


def _as_float(number):
    """A number of a table of embeddings as float32."""


@overload(_as_float)
def _as_float_overload(number):
    if number == types.uint16:
        return lambda number: float_from_bits(int32(int32(number) << 16))
    return lambda number: number


@compiled
def embed(row, out):
    """out, float32 [H] = a row of a table of embeddings."""
    for i in range(out.shape[0]):
        out[i] = _as_float(row[i])


@compiled
def add_embeddings(first, others, vocabulary, codes, out):
    """Frames of codes, int64 [N, K] -> the sums of their codes' embeddings, out float32 [N, H].

    first: the table of codebook 0, [V, H]. others: the tables of codebooks 1, 2, ..., one after the other, each of
    `vocabulary` rows: [(K - 1) * vocabulary, H].
    """
    for n in range(codes.shape[0]):
        embed(first[codes[n, 0]], out[n])
        for book in range(1, codes.shape[1]):
            row = others[(book - 1) * vocabulary + codes[n, book]]
            for i in range(row.shape[0]):
                out[n, i] += _as_float(row[i])


@compiled
def _normalise(head, weight, eps):
    """Root-mean-square norm of one head [D], in place. A weight [0]: there is none."""
    if weight.shape[0] > 0:
        factor = float32(1) / math.sqrt(dot(head, head) / float32(head.shape[0]) + eps)
        for i in range(head.shape[0]):
            head[i] = weight[i] * (head[i] * factor)


@compiled
def _add_bias(head, bias, first):
    """Add the biases from `first` on to one head [D], in place. A bias [0]: there is none."""
    if bias.shape[0] > 0:
        for i in range(head.shape[0]):
            head[i] += bias[first + i]


@compiled
def decoder_layers(thread, threads, counters, phase, weights, vectors, eps, cache, where, per_thread, shared, x):
    """All decoder layers on N new positions of any streams, in place: x [N, C] becomes the input of the last norm.

    It takes LAYER_PHASES phases for each layer, from `phase` on. The other arguments are those of `decoder_stack`;
    their memory may be for more rows than x has.
    """
    (qkv, qkv_groups), (o, o_groups), (gate_up, gate_up_groups), (down, down_groups) = weights
    attention_norm, mlp_norm, query_norm, key_norm, _, bias, attention_norm_bias, mlp_norm_bias, _ = vectors
    keys, values, cos, sin = cache
    slots, positions, seen = where
    count = x.shape[0]
    mine = per_thread[0][thread], per_thread[1][thread]
    normed, scores = per_thread[2][thread][:count], per_thread[3][thread]
    heads, attended, gates, hidden, product = shared
    attended, hidden = attended[:count], hidden[:count]
    dim, kv_heads = keys.shape[4], keys.shape[2]
    query_heads = attended.shape[1] // dim
    ratio = query_heads // kv_heads
    chunks = CHUNKS_PER_THREAD * threads
    for layer in range(qkv.shape[0]):
        norm(x, attention_norm[layer], attention_norm_bias[layer], eps, normed)
        product_phase(thread, counters, phase, chunks, qkv[layer], qkv_groups[layer], normed, mine, heads)

        g = claim(counters, phase + 1)  # a chunk is a key-value head
        while g < kv_heads:
            k_start, v_start = (query_heads + g) * dim, (query_heads + kv_heads + g) * dim
            for n in range(count):
                slot, position = slots[n], positions[n]
                key, value = heads[n, k_start : k_start + dim], heads[n, v_start : v_start + dim]
                _add_bias(key, bias[layer], k_start)
                _add_bias(value, bias[layer], v_start)
                _normalise(key, key_norm[layer], eps)
                rotate(key, cos[position], sin[position])
                for i in range(dim):
                    keys[layer, slot, g, position, i] = key[i]
                    values[layer, slot, g, position, i] = value[i]
            for n in range(count):
                slot, position = slots[n], positions[n]
                for h in range(g * ratio, (g + 1) * ratio):
                    query = heads[n, h * dim : (h + 1) * dim]
                    _add_bias(query, bias[layer], h * dim)
                    _normalise(query, query_norm[layer], eps)
                    rotate(query, cos[position], sin[position])
                    result = attended[n, h * dim : (h + 1) * dim]
                    attend(query, keys[layer, slot, g], values[layer, slot, g], seen[n], scores, result)
            finish(counters, phase + 1, 1)
            g = claim(counters, phase + 1)
        wait(counters, phase + 1, kv_heads)

        residual_phase(thread, counters, phase + 2, chunks, o[layer], o_groups[layer], attended, mine, product, x)
        norm(x, mlp_norm[layer], mlp_norm_bias[layer], eps, normed)
        gated_phase(
            thread, counters, phase + 3, chunks, gate_up[layer], gate_up_groups[layer], normed, mine, gates, hidden
        )
        residual_phase(thread, counters, phase + 4, chunks, down[layer], down_groups[layer], hidden, mine, product, x)
        phase += LAYER_PHASES


@compiled
def decoder_stack(thread, threads, counters, weights, vectors, eps, cache, where, per_thread, shared, x, out):
    """All decoder layers and the last norm on N new positions of any streams. A function for `ThreadPool.run`.

    Args:
        thread, threads: this thread's number, and how many threads there are.
        counters: int64 [2 * LAYER_PHASES * L], zeros.
        weights: of the four projections: qkv, o, gate and up, down; without a gate up alone. Each is a pair: the
            weights of all layers [L, O, I], and the scales of their groups.
        vectors: float32: the norms before attention and before the feed-forward part [L, C], of queries and of keys
            [L, D], or [L, 0] if there are none, and the last norm [C]; the biases of qkv [L, O], or [L, 0]; those of
            the norms before attention and before the feed-forward part [L, C], and of the last norm [C]: with size 0
            in place of C they are root-mean-square norms.
        eps: float32, of all norms.
        cache: float32: keys and values [L, slots, G, positions, D], cos and sin [positions, D / 2].
        where: of each row its slot, its position, and how many of its slot's first positions it attends to, int64 [N]
            each; also to those that are written in this call.
        per_thread: memory of each thread: rounded rows [N * I], their scales, normed rows float32 [N, C], attention
            scores.
        shared: float32 rows that the threads share: queries, keys and values; the attention's results; gate and up; the
            inner rows of the feed-forward part; a product.
        x: float32 [N, C]; overwritten.
        out: float32 [N, C], to be filled: the normed hidden states.
    """
    decoder_layers(thread, threads, counters, 0, weights, vectors, eps, cache, where, per_thread, shared, x)
    if thread == 0:
        norm(x, vectors[4], vectors[8], eps, out)
