"""Rows of embedding tables, kept as float32 or as the upper halves of them (bf16) in uint16."""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

from numba import int32, njit, types
from numba.extending import overload

from voice_clone.native.matrix.products import _number
from voice_clone.native.transformer.kernels import _OPTIONS


def _value(kept):
    """A number of a table as float32."""


@overload(_value)
def _value_overload(kept):
    if kept == types.uint16:
        return lambda kept: _number(int32(int32(kept) << 16))
    return lambda kept: kept


@njit(**_OPTIONS)
def embed(row, out):
    """out [H] = a row of a table."""
    for i in range(out.shape[0]):
        out[i] = _value(row[i])


@njit(**_OPTIONS)
def embed_frames(first, others, vocabulary, codes, out):
    """Codec frames, int64 [N, K] -> the sums of their codes' embeddings, out [N, H].

    first: the table of codebook 0, [V, H]; others: those of codebooks 1, 2, ..., one after the other, `vocabulary` rows
    each, [(K - 1) * vocabulary, H].
    """
    for n in range(codes.shape[0]):
        embed(first[codes[n, 0]], out[n])
        for book in range(1, codes.shape[1]):
            row = others[(book - 1) * vocabulary + codes[n, book]]
            for i in range(row.shape[0]):
                out[n, i] += _value(row[i])
