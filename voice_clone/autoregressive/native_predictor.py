"""A code predictor as native code, on a CPU: its loop over the codebooks is one call. It computes without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from voice_clone.array_kinds import Numbers, array_of, in_kind_of
from voice_clone.autoregressive.sampling import CodeDraws
from voice_clone.autoregressive.stack.native_stack import NativeCache, NativeStack
from voice_clone.native.arrays import Array
from voice_clone.native.kernel import Kernel
from voice_clone.native.matrix.linear import PackedLinear, Workspace
from voice_clone.native.matrix.rounding import bf16_bits, widen
from voice_clone.native.matrix.weights import Packed, as_float32, head_precision, is_bf16, pack
from voice_clone.native.packed_file import MappedPages, Part, made
from voice_clone.native.sizes import CODEBOOK_PHASES, LAYER_PHASES
from voice_clone.native.thread_pool import thread_pool
from voice_clone.settings import Precision

predict = Kernel("transformer.predictor.predict")


class NativePredictor:
    """A `CodePredictor`, and `PredictorParts`. It takes arrays or tensors, and returns the same.

    Args:
        stack: its layers.
        heads: of codebooks 1, 2, ..., or one for all.
        vocabulary: V.
        tables: embeddings of codebooks 1, 2, ..., or one table for all: [tables, rows, H], float32 or the bits of bf16.
        codebooks: K.
        projection: from embeddings to hidden states, if their sizes differ.

    Parts of fp32 are brought to one form, `stack` and `projection` in place.
    """

    def __init__(
        self,
        stack: NativeStack,
        heads: Packed,
        vocabulary: int,
        tables: Array,
        codebooks: int,
        projection: PackedLinear | None = None,
    ) -> None:
        self.stack, self.codebooks = stack, codebooks
        heads, tables, projection = _in_one_form(stack, heads, tables, projection)
        self._vocabulary, self._heads, self._tables = vocabulary, heads, tables
        self.lm_head = [PackedLinear(heads[index], vocabulary) for index in range(len(heads.values))]
        self._project = projection
        self._projection = heads[0][:0] if projection is None else projection.packed
        bias = None if projection is None else projection.bias
        self._bias: Array = np.zeros(tables.shape[2], np.float32) if bias is None else bias
        self._head_work, self._projection_work = Workspace(heads[0]), Workspace(self._projection)
        self._table_pages = MappedPages(tables)
        self._rows = 0
        self._places: Array
        self._shared: tuple[Array, ...]
        self._own: tuple[Array, ...]

    @property
    def nbytes(self) -> int:
        return self.stack.nbytes

    @property
    def tables(self) -> Array:
        """The embeddings, as it keeps them."""
        return self._tables

    @property
    def frame_bytes(self) -> int:
        """Bytes of the packed weights that a frame reads: layers and heads, as often as it reads them."""
        books = range(self.codebooks - 1)
        return len(books) * self.nbytes + sum(self.lm_head[book % len(self.lm_head)].nbytes for book in books)

    def project(self, x: Numbers) -> Numbers:
        """[..., H] -> [..., C]."""
        return x if self._project is None else in_kind_of(x, self._project(array_of(x)))

    def logits(self, hidden: Numbers, book: int) -> Numbers:
        """[B, C] -> [B, V] of codebook `book`, 1..K-1."""
        return in_kind_of(hidden, self.lm_head[(book - 1) % len(self.lm_head)](array_of(hidden)))

    def embed(self, codes: Numbers, book: int = 1) -> Numbers:
        """Codes of codebook `book` and the following ones, int64 [B, N] -> [B, N, H]."""
        books = np.arange(book - 1, book - 1 + codes.shape[1]) % len(self._tables)
        found = self._tables[books, array_of(codes)]
        return in_kind_of(codes, widen(found, np.empty(found.shape, np.float32)))

    def new_memory(self, slots: int) -> NativeCache:
        # The last code is never fed back, so K codes need K positions: the hidden state and codes 0..K-2.
        return self.stack.new_frame_cache(slots, self.codebooks)

    def complete(
        self, cache: NativeCache | None, hidden: Numbers, code0: Numbers, embed0: Numbers, draws: CodeDraws
    ) -> tuple[Numbers, Numbers]:
        """As of `CodePredictor`, in one call."""
        assert cache is not None and not draws.kind.crossing, "native code knows no such sampler of these codebooks"
        rows = np.stack([array_of(hidden), array_of(embed0)], axis=1)
        x = rows if self._project is None else self._project(rows)  # [B, 2, C]
        count, books = len(code0), self.codebooks - 1
        self._resize(count, cache.keys.shape[3])
        codes = np.zeros((count, books + 1), np.int64)
        codes[:, 0] = array_of(code0)
        finite = np.ones(count, np.bool_)
        stack, (logits, embeddings) = self.stack, self._shared
        thread_pool().run(
            predict,
            books * (LAYER_PHASES * len(stack.vectors[0]) + CODEBOOK_PHASES),
            (books + 1) * count * stack.multiplications,
            stack.weights,
            stack.vectors,
            stack.eps,
            stack.memory(cache),
            self._places,
            stack.work.per_thread,
            stack.work.common,
            (*self._heads.arrays, *self._head_work.per_thread, logits),
            (*self._projection.arrays, *self._projection_work.per_thread, self._bias, embeddings),
            self._tables,
            (
                np.ascontiguousarray(array_of(draws.options)),
                np.ascontiguousarray(array_of(draws.uniform)),
                *self._own,
                draws.kind.filters_first,
            ),
            x.reshape(2 * count, -1),
            codes,
            finite,
        )
        self._table_pages.give_back()
        return in_kind_of(hidden, codes), in_kind_of(hidden, finite)

    def _resize(self, count: int, positions: int) -> None:
        """Memory for so many streams."""
        self.stack.work.resize_to(2 * count, positions)
        if count == self._rows:
            return
        self._rows = count
        for work in (self._head_work, self._projection_work):
            work.resize(count)
        books, size = self.codebooks - 1, self._vocabulary
        self._places = np.zeros((books, 3, 2 * count), np.int64)
        self._places[0, :2] = np.repeat(np.arange(count), 2), np.tile([0, 1], count)
        self._places[1:, 0, :count] = np.arange(count)
        self._places[1:, 1] = np.arange(2, books + 1)[:, None]
        self._places[:, 2] = self._places[:, 1] + 1  # a row sees the ones before it and itself
        threads = thread_pool().threads
        self._shared = tuple(np.zeros((count, width), np.float32) for width in (size, self._tables.shape[2]))
        self._own = tuple(np.zeros((threads, size), kind) for kind in (np.int32, np.float32))


def _in_one_form(
    stack: NativeStack, heads: Packed, tables: Array, projection: PackedLinear | None
) -> tuple[Packed, Array, PackedLinear | None]:
    """All parts of fp32 with 16 bits for each number or, if one of them has other numbers, all with 32 bits.

    Native code is compiled ahead for these two forms, not for mixtures of them.
    """
    if heads.values.dtype not in (np.int16, np.float32):
        return heads, tables, projection
    if tables.dtype == np.float32 and is_bf16(tables.reshape(-1, tables.shape[-1])):
        tables = bf16_bits(tables)
    layers = [Packed(*arrays) for arrays in stack.weights]
    others = [heads] if projection is None else [heads, projection.packed]
    if tables.dtype == np.uint16 and all(each.in_halves for each in (*layers, *others)):
        return heads, tables, projection
    stack.widen()
    if projection is not None:
        projection.widen()
    return heads.widened(), as_float32(tables) if tables.dtype == np.uint16 else tables, projection


def packed_heads(heads: Callable[[], Sequence[Numbers]], precision: Precision, part: Part = made) -> Packed:
    """The heads of a predictor, [V, C] each, packed: not below int8.

    Args:
        heads: called if they are not found packed.
        part: finds them.
    """

    def pack_all() -> tuple[Array, Array]:
        weights, kept = heads(), head_precision(precision)
        packed = Packed.room_for(weights, kept)
        for index, head in enumerate(weights):
            pack(head, kept, packed[index])
        return packed.arrays

    return Packed(*part(pack_all))
