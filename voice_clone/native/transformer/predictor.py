"""The code predictor's whole loop over the codebooks as one call of native code; see kernels.py.

Between two codes lies too little work to go back to Python for: by then its own code and data have left the
processor's cache, for each code reads all weights, and every thread would have to be woken again.

Shapes: N streams, K codebooks, V codes of each, C hidden size, H size of the embeddings.
"""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

from numba import njit

from voice_clone.native.transformer.draw import draw, is_finite
from voice_clone.native.transformer.embedding import embed
from voice_clone.native.transformer.kernels import (
    _OPTIONS,
    CHUNKS,
    LAYER_PHASES,
    _claim,
    _done,
    _multiply,
    _multiply_add,
    _normalise,
    _wait,
    layers,
)

OWN_PHASES = 3  # of a codebook, behind those of the layers: head, draw, projection


@njit(**_OPTIONS)
def predict(
    thread,
    threads,
    counters,
    weights,
    norms,
    eps,
    cache,
    places,
    own,
    common,
    heads,
    projection,
    tables,
    choice,
    x,
    codes,
    finite,
):
    """Codebooks 1 to K - 1 of N frames.

    Args:
        thread, threads, weights, norms, eps, cache, own, common: as of `stack`, with memory for 2 N rows.
        counters: int64 [2 (K - 1) (5 L + OWN_PHASES)], zeros.
        places: of each codebook's rows the slots and the positions, int64 [K - 1, 2, 2 N].
        heads: their weights [K - 1, V, I], the scales of their groups, memory of each thread for prepared rows and
            their scales, and logits [N, V].
        projection: from embeddings to hidden states: weights [C, I] and scales, memory as above, bias [C], embeddings
            [N, H]. Without rows of weights there is none, and H is C.
        tables: embeddings of codebook 1, 2, ..., float32 or the upper halves (bf16) as uint16 [K - 1, V, H].
        choice: knobs float32 [N, 4], uniform float64 [N, K], memory of each thread int32 and float32 [V]: see draw.py.
        x: [2 N, C], of each stream the hidden state and code 0 as the layers take them; lost.
        codes: int64 [N, K]; the first column is given.
        finite: bool [N], whether all logits were.
    """
    head, head_groups, head_prepared, head_scales, logits = heads
    project, project_groups, project_prepared, project_scales, bias, embeddings = projection
    knobs, uniform, below, probabilities = choice
    count = codes.shape[0]
    projects = project.shape[0] > 0
    normed = own[2][thread]
    inner = LAYER_PHASES * norms[0].shape[0]
    chunks = CHUNKS * threads
    for book in range(head.shape[0]):
        phase = book * (inner + OWN_PHASES)
        each = 2 if book == 0 else 1  # rows of a stream
        rows = x[: each * count]
        where = places[book, 0, : each * count], places[book, 1, : each * count]
        layers(thread, threads, counters, phase, weights, norms, eps, cache, where, own, common, rows)
        phase += inner
        for n in range(count):
            last = each * n + each - 1
            _normalise(rows[last : last + 1], norms[4], eps, normed[n : n + 1])
        mine = head_prepared[thread], head_scales[thread]
        _multiply(thread, counters, phase, chunks, head[book], head_groups[book], normed[:count], mine, logits)
        ends = book == head.shape[0] - 1
        n = _claim(counters, phase + 1)
        while n < count:
            finite[n] &= is_finite(logits[n])
            code = draw(logits[n], knobs[n], uniform[n, book + 1], below[thread], probabilities[thread])
            codes[n, book + 1] = code
            if not ends and projects:
                embed(tables[book, code], embeddings[n])
                x[n] = bias
            elif not ends:
                embed(tables[book, code], x[n])
            _done(counters, phase + 1)
            n = _claim(counters, phase + 1)
        _wait(counters, phase + 1, count)
        if projects and not ends:
            mine = project_prepared[thread], project_scales[thread]
            _multiply_add(
                thread, counters, phase + 2, chunks, project, project_groups, embeddings, mine, common[4], x[:count]
            )
