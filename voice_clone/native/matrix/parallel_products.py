"""Products as phases of a function that several threads run; see work_sharing.py.

Each thread rounds all rows of activations for itself, then claims chunks of outputs. Nothing here allocates.

Shapes: N rows, I inputs (padded), O outputs. Arguments that the functions share:

    thread, chunks      this thread's number; how many chunks the phase has
    counters, phase     as work_sharing.py has them
    weights, groups     the arrays of a `Packed`
    x                   float32 [N, inputs]
    own                 this thread's memory for rounded rows [N * I] and their scales
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

from numba import int64

from voice_clone.native.arithmetic import silu
from voice_clone.native.compilation import compiled
from voice_clone.native.matrix.panel_products import PANEL
from voice_clone.native.matrix.products import multiply, padded_inputs, prepare
from voice_clone.native.work_sharing import claim_from_either_end, finish, share, wait

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
    prepared = flat[: x.shape[0] * inputs].reshape(x.shape[0], inputs)
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

    `product` is memory for [N, 2 * O].
    """
    prepared = _prepared(weights, x, own)
    inner = out.shape[1]
    done = int64(0)
    chunk = claim_from_either_end(counters, phase, chunks, thread)
    while chunk >= 0:
        first, last = _outputs(inner, chunk, chunks)
        multiply(weights, groups, prepared, own[1], first, last, product)
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
