"""Products of rows of activations with a matrix in any of its forms; see weights.py.

A product with few rows takes as long as reading the weights. So the weights are read once for all rows, in the form in
which they are stored. The type of the array is that of the form:

| array | one weight | activations |
|---|---|---|
| float32 [O, I] | the number | float32 |
| int16 [O, I] | the upper half of a float32 (bf16) | float32 |
| uint16 [O, I] | the upper half of a float32 (bf16) | float32, or uint16: bf16 |
| int8 [O, I] | the number times the scale of its group of 128 | int16 |
| uint8 [O, I / 2] | half a byte minus 8, times the scale of its group of 32 | int8 |

With bf16 weights the type of the rounded rows is that of the activations: prompts, which compute more than they read,
are rounded to bf16 where the processor has dot products of bf16. With int8 weights activations are rounded to 16
bits, with one scale for each row. With int4 weights they are rounded to 8 bits, with one scale for each group of a row;
this error is small beside that of rounding the weights. The sum of a group is exact. I is padded with zeros to what a
product takes at once and O, but with fp32, to whole panels; see weights.py. The result of a row is the same, bit for
bit, whatever other rows there are.

The functions with `phase` in their names are phases of a function that several threads run; see work_sharing.py. Each
thread rounds all rows of activations for itself, then claims chunks of outputs. Nothing here allocates.

Shapes: N rows, I inputs (padded), O outputs. Arguments that the phases share:

    thread, chunks      this thread's number; how many chunks the phase has
    counters, phase     as work_sharing.py has them
    weights, groups     the arrays of a `Packed`
    x                   float32 [N, inputs]
    own                 this thread's memory for rounded rows [N * I] and their scales
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import numpy as np
from numba import float32, int8, int16, int32, int64, types, uint16, uint32
from numba.extending import overload, register_jitable

from voice_clone.native.kernels.arithmetic import float_bits, float_from_bits, gelu_tanh, matrix, silu
from voice_clone.native.kernels.compilation import compiled
from voice_clone.native.kernels.matrix.tile_products import dot_tile, panel_tile
from voice_clone.native.kernels.work_sharing import claim_from_either_end, finish, share, wait
from voice_clone.native.sizes import INT4_GROUP, PANEL, WIDTH

BLOCK_BYTES = 128 << 10  # of weights that stay in a core's cache while rows pass by
FEW_ROWS = 8  # a product of at most so many rows waits for its weights


def padded_inputs(weights):
    """I, the length of a row of activations as `multiply` takes it."""


@overload(padded_inputs)
def _padded_inputs_overload(weights):
    if weights.dtype == types.uint8:
        return lambda weights: 2 * weights.shape[1]
    return lambda weights: weights.shape[1]


def prepare(weights, x, prepared, scales):
    """Round rows of activations to what `weights` are multiplied with.

    x: float32 [N, inputs]. prepared: [N, I], to be filled: rows of the type in the table above. scales: float32, to be
    filled with int8 weights: [N]; with int4 weights [N, 2, I / 32], flat: for each group of a row its scale, and the
    number that corrects for the weights being stored without a sign.
    """


@overload(prepare)
def _prepare_overload(weights, x, prepared, scales):
    kinds = {types.int8: _round_groups, types.int16: _round_rows, types.uint16: _round_to_bf16}
    return kinds.get(prepared.dtype, _copy_rows)


def _copy_rows(weights, x, prepared, scales):
    for n in range(x.shape[0]):
        for i in range(x.shape[1]):
            prepared[n, i] = x[n, i]
        for i in range(x.shape[1], prepared.shape[1]):
            prepared[n, i] = float32(0)


def _round_to_bf16(weights, x, prepared, scales):
    for n in range(x.shape[0]):
        for i in range(x.shape[1]):
            prepared[n, i] = _bf16_bits(x[n, i])
        for i in range(x.shape[1], prepared.shape[1]):
            prepared[n, i] = uint16(0)


@register_jitable
def _bf16_bits(x):
    """The nearest bf16, of two as near the even one; NaN stays NaN."""
    bits = uint32(float_bits(x))
    rounded = uint32(bits + uint32(0x7FFF) + ((bits >> uint32(16)) & uint32(1)))
    return uint16((bits if x != x else rounded) >> uint32(16))


@register_jitable
def _largest(x):
    """The largest magnitude of [N], above zero; infinity or NaN if there is one."""
    bits = float_bits(float32(1e-30))  # the bits of infinity and NaN are above those of all numbers
    for i in range(x.shape[0]):
        bits = max(bits, int32(float_bits(x[i]) & int32(0x7FFFFFFF)))
    return float_from_bits(bits)


@register_jitable
def _rounded(x):
    """The nearest int32."""
    return int32(np.floor(x + float32(0.5)))


def _round_rows(weights, x, prepared, scales):
    for n in range(x.shape[0]):
        size = _largest(x[n])
        scales[n] = size / float32(32767)
        inverse = float32(32767) / size
        for i in range(x.shape[1]):
            prepared[n, i] = int16(_rounded(x[n, i] * inverse))
        for i in range(x.shape[1], prepared.shape[1]):
            prepared[n, i] = int16(0)


def _round_groups(weights, x, prepared, scales):
    count = prepared.shape[1] // INT4_GROUP
    for n in range(x.shape[0]):
        for g in range(count):
            start = g * INT4_GROUP
            rounded = prepared[n, start : start + INT4_GROUP]
            if start + INT4_GROUP <= x.shape[1]:
                scale, total = _round_group(x[n, start:], rounded, INT4_GROUP)  # a size that the compiler knows
            else:
                scale, total = _round_group(x[n, start:], rounded, x.shape[1] - start)
                rounded[x.shape[1] - start :] = int8(0)
            scales[2 * n * count + g] = scale
            scales[(2 * n + 1) * count + g] = float32(-8 * total) * scale


@register_jitable
def _round_group(x, rounded, size):
    """Round the first `size` numbers of a group. Returns their scale and the sum of the rounded numbers."""
    largest = _largest(x[:size])
    inverse = float32(127) / largest
    total = int32(0)
    for i in range(size):
        value = _rounded(x[i] * inverse)
        rounded[i] = int8(value)
        total += value
    return largest / float32(127), total


def multiply(weights, groups, x, scales, first, last, out):
    """out[n, o] = weights[o] . x[n] for o in first..last - 1.

    weights, groups: the arrays of a `Packed`. x, scales: as `prepare` filled them. out: float32 [N, O].
    """


@overload(multiply)
def _multiply_overload(weights, groups, x, scales, first, last, out):
    return _multiply_rows() if weights.dtype in (types.float32, types.int16) else _multiply_panels()


def _multiply_rows():
    """`multiply` for fp32."""
    wide = 3  # outputs of a tile
    # A product of few rows waits for its weights. A product of many rows computes with one block of weights, which
    # stays in the cache. The processor prefetches rows that are read in one direction.
    few, many = dot_tile(wide, 4, prefetch=True), dot_tile(wide, 4)
    narrow, single = dot_tile(1, 4), dot_tile(1, 1)

    def product(weights, groups, x, scales, first, last, out):
        rows = x.shape[0]
        fours = rows - rows % 4
        block = wide * max(1, BLOCK_BYTES // (wide * weights.shape[1] * weights.itemsize))
        for start in range(first, last, block):
            stop = min(start + block, last)
            tiled = stop - (stop - start) % wide
            for n in range(0, fours, 4):
                for o in range(start, tiled, wide):
                    sums = few(weights, x, o, n) if rows <= FEW_ROWS else many(weights, x, o, n)
                    for k in range(wide):
                        for r in range(4):
                            out[n + r, o + k] = sums[4 * k + r]
                for o in range(tiled, stop):
                    sums = narrow(weights, x, o, n)
                    for r in range(4):
                        out[n + r, o] = sums[r]
            for n in range(fours, rows):
                for o in range(start, stop):
                    out[n, o] = single(weights, x, o, n)[0]

    return product


def _multiply_panels():
    """`multiply` for bf16, int8 and int4. Panels are computed as a whole."""
    most = 8 if WIDTH == 16 else 4  # rows of a tile: what the registers hold
    # The processor itself prefetches the one panel that a single row reads.
    many, few, single = panel_tile(2, most), panel_tile(2, 4, prefetch=True), panel_tile(1, 1)
    last_panel = panel_tile(1, 4)  # of an odd number

    def product(weights, groups, x, scales, first, last, out):
        rows = x.shape[0]
        block = 2 * PANEL * max(1, BLOCK_BYTES // (2 * PANEL * weights.shape[1] * weights.itemsize))
        for start in range(first - first % PANEL, last, block):
            stop = min(start + block, last)
            paired = stop - (stop - start + PANEL - 1) // PANEL % 2 * PANEL
            n = 0
            while n < rows:
                size = most if rows > FEW_ROWS and rows - n > 4 else 4 if rows >= 4 else 1
                n = min(n, rows - size)  # a row that is computed twice is the same
                if size == 1:
                    for o in range(start, stop, PANEL):
                        single(weights, groups, x, scales, out, o, n, first, last)
                else:
                    for o in range(start, paired, 2 * PANEL):
                        if size > 4:
                            many(weights, groups, x, scales, out, o, n, first, last)
                        else:
                            few(weights, groups, x, scales, out, o, n, first, last)
                    if paired < stop:
                        o = start + (stop - 1 - start) // PANEL * PANEL
                        for four in range(n, n + size, 4):
                            last_panel(weights, groups, x, scales, out, o, four, first, last)
                n += size

    return product


CHUNKS_PER_THREAD = 16  # of a phase; small chunks let threads end at the same time


@compiled
def _outputs(count, chunk, chunks):
    """Which of `count` outputs belong to a chunk, in whole panels: (first, last + 1)."""
    first, last = share((count + PANEL - 1) // PANEL, chunk, chunks)
    return PANEL * first, min(PANEL * last, count)


@compiled
def _prepared(weights, x, own):
    """Rows of activations, rounded for `multiply`, in this thread's memory."""
    flat, scales = own
    inputs = padded_inputs(weights)
    prepared = matrix(flat, x.shape[0], inputs)
    prepare(weights, x, prepared, scales)
    return prepared


@compiled
def _add(a, out):
    """out [N] += a. The compiler makes vectors of it, unlike of a loop whose first index could be negative."""
    for i in range(out.shape[0]):
        out[i] += a[i]


@compiled
def _gate(gate, up, out):
    """out [N] = silu(gate) * up."""
    for i in range(out.shape[0]):
        out[i] = silu(gate[i]) * up[i]


@compiled
def _activate(x, out):
    """out [N] = GELU of x."""
    for i in range(out.shape[0]):
        out[i] = gelu_tanh(x[i])


@compiled
def product_phase(thread, counters, phase, chunks, weights, groups, x, own, out):
    """out [N, O] = x times the weights. `out` may have more rows than x."""
    prepared = _prepared(weights, x, own)
    done = int64(0)
    chunk = claim_from_either_end(counters, phase, chunks, thread)
    while chunk >= 0:
        first, last = _outputs(out.shape[1], chunk, chunks)
        multiply(weights, groups, prepared, own[1], first, last, out)
        done += 1
        chunk = claim_from_either_end(counters, phase, chunks, thread)
    finish(counters, phase, done)
    wait(counters, phase, chunks)


@compiled
def residual_phase(thread, counters, phase, chunks, weights, groups, x, own, product, residual):
    """residual [N, O] += x times the weights. `product` is memory for [N, O]."""
    prepared = _prepared(weights, x, own)
    done = int64(0)
    chunk = claim_from_either_end(counters, phase, chunks, thread)
    while chunk >= 0:
        first, last = _outputs(residual.shape[1], chunk, chunks)
        multiply(weights, groups, prepared, own[1], first, last, product)
        for n in range(x.shape[0]):
            _add(product[n, first:last], residual[n, first:last])
        done += 1
        chunk = claim_from_either_end(counters, phase, chunks, thread)
    finish(counters, phase, done)
    wait(counters, phase, chunks)


@compiled
def gated_phase(thread, counters, phase, chunks, weights, groups, x, own, product, out):
    """out [N, O] = silu(gate) * up, where gate and up [N, O] are x times the first and the second half of the weights.

    `product` is memory for [N, 2 * O]. If it is for [N, O], there is no gate: out is GELU of x times the weights.
    """
    prepared = _prepared(weights, x, own)
    inner = out.shape[1]
    done = int64(0)
    chunk = claim_from_either_end(counters, phase, chunks, thread)
    while chunk >= 0:
        first, last = _outputs(inner, chunk, chunks)
        multiply(weights, groups, prepared, own[1], first, last, product)
        if product.shape[1] == inner:
            for n in range(x.shape[0]):
                _activate(product[n, first:last], out[n, first:last])
        else:
            multiply(weights, groups, prepared, own[1], inner + first, inner + last, product)
            for n in range(x.shape[0]):
                _gate(product[n, first:last], product[n, inner + first : inner + last], out[n, first:last])
        done += 1
        chunk = claim_from_either_end(counters, phase, chunks, thread)
    finish(counters, phase, done)
    wait(counters, phase, chunks)


@compiled
def linear(thread, threads, counters, weights, groups, x, per_thread, out):
    """A function of one phase for `ThreadPool.run`: out [N, O] = x times the weights.

    per_thread: memory of each thread for rounded rows [threads, N * I] and their scales.
    """
    own = per_thread[0][thread], per_thread[1][thread]
    product_phase(thread, counters, 0, CHUNKS_PER_THREAD * threads, weights, groups, x, own, out)
