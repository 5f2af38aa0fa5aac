"""Rows of embedding tables. A table is float32, or the bits of bf16 as uint16; see `weights.embedding_array`."""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

from numba import int32, types
from numba.extending import overload

from voice_clone.native.arithmetic import float_from_bits
from voice_clone.native.compilation import compiled


def _as_float(number):
    """A number of a table as float32."""


@overload(_as_float)
def _as_float_overload(number):
    if number == types.uint16:
        return lambda number: float_from_bits(int32(int32(number) << 16))
    return lambda number: number


@compiled
def embed(row, out):
    """out, float32 [H] = a row of a table."""
    for i in range(out.shape[0]):
        out[i] = _as_float(row[i])


@compiled
def embed_frames(first, others, vocabulary, codes, out):
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
