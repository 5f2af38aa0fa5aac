"""Runs a code predictor over the codebooks of a frame in one native function; see work_sharing.py for its threads.

One call computes all codebooks, because the work for one code is small and a return to Python between two codes is
expensive: each code reads all weights, which displace Python's code and data from the processor's cache, and every
thread would have to be woken again.

Shapes: N streams, K codebooks, V codes in each, C hidden size, H size of the embeddings, I inputs (padded).
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

from voice_clone.native.kernels.arithmetic import norm
from voice_clone.native.kernels.compilation import compiled
from voice_clone.native.kernels.matrix.products import CHUNKS_PER_THREAD, product_phase, residual_phase
from voice_clone.native.kernels.transformer.decoder_stack import decoder_layers, embed
from voice_clone.native.kernels.transformer.draw import draw, draw_filter_first, is_finite
from voice_clone.native.kernels.work_sharing import claim, finish, wait
from voice_clone.native.sizes import CODEBOOK_PHASES, LAYER_PHASES


@compiled
def predict(
    thread,
    threads,
    counters,
    weights,
    vectors,
    eps,
    cache,
    places,
    per_thread,
    shared,
    heads,
    projection,
    tables,
    choice,
    x,
    codes,
    finite,
):
    """Draw the codes of codebooks 1 to K - 1 for N frames.

    Args:
        thread, threads, weights, vectors, eps, cache: as of `decoder_stack`.
        per_thread, shared: as of `decoder_stack`, for 2 N rows.
        counters: int64 [2 * (K - 1) * (LAYER_PHASES * L + CODEBOOK_PHASES)], zeros.
        places: for each codebook, the slots of its rows, their positions, and how many positions they see, int64
            [K - 1, 3, 2 N].
        heads: their weights [K - 1, V, I], or [1, V, I] if the codebooks share one, the scales of their groups,
            memory of each thread for rounded rows and for the rows' scales, and memory for logits [N, V].
        projection: from embeddings to hidden states: weights [C, I], the scales of their groups, memory as above, bias
            [C], memory for embeddings [N, H]. If the weights have no rows, there is no projection, and H is C.
        tables: embeddings of codebooks 1, 2, ..., [K - 1, V, H], or one for all, [1, V, H]: float32, or the bits of
            bf16 as uint16.
        choice: knobs float32 [N, 4], uniform float64 [N, K or more], memory of each thread int32 [V] and float32 [V],
            whether the draw is `draw_filter_first`; see draw.py.
        x: float32 [2 N, C], for each stream two rows that the layers take: the hidden state and code 0; overwritten.
        codes: int64 [N, K]. The first column is input, the others are to be filled.
        finite: bool [N]; becomes false where logits are not finite.
    """
    head, head_groups, head_rows, head_scales, logits = heads
    project, project_groups, project_rows, project_scales, bias, embeddings = projection
    knobs, uniform, distances, probabilities, filter_first = choice
    count = codes.shape[0]
    projects = project.shape[0] > 0
    normed = per_thread[2][thread]
    inner = LAYER_PHASES * vectors[0].shape[0]
    chunks = CHUNKS_PER_THREAD * threads
    books = places.shape[0]
    for book in range(books):
        phase = book * (inner + CODEBOOK_PHASES)
        each = 2 if book == 0 else 1  # rows of a stream
        rows = x[: each * count]
        at = places[book, :, : each * count]
        where = at[0], at[1], at[2]
        decoder_layers(thread, threads, counters, phase, weights, vectors, eps, cache, where, per_thread, shared, rows)
        phase += inner
        for n in range(count):
            last = each * n + each - 1
            norm(rows[last : last + 1], vectors[4], vectors[8], eps, normed[n : n + 1])
        mine = head_rows[thread], head_scales[thread]
        own = book % head.shape[0]
        product_phase(thread, counters, phase, chunks, head[own], head_groups[own], normed[:count], mine, logits)
        is_last = book == books - 1
        n = claim(counters, phase + 1)  # a chunk is a stream
        while n < count:
            finite[n] &= is_finite(logits[n])
            memory = distances[thread], probabilities[thread]
            if filter_first:
                code = draw_filter_first(logits[n], knobs[n], uniform[n, book + 1], *memory, False)
            else:
                code = draw(logits[n], knobs[n], uniform[n, book + 1], *memory)
            codes[n, book + 1] = code
            if not is_last and projects:
                embed(tables[book % tables.shape[0], code], embeddings[n])
                for i in range(bias.shape[0]):  # x[n] = bias takes seconds more to compile, for its error message
                    x[n, i] = bias[i]
            elif not is_last:
                embed(tables[book % tables.shape[0], code], x[n])
            finish(counters, phase + 1, 1)
            n = claim(counters, phase + 1)
        wait(counters, phase + 1, count)
        if projects and not is_last:
            mine = project_rows[thread], project_scales[thread]
            residual_phase(
                thread, counters, phase + 2, chunks, project, project_groups, embeddings, mine, shared[4], x[:count]
            )
