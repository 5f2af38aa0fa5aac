"""A code predictor as native code, on a CPU: its loop over the codebooks is one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.code_head import frame_cache
from voice_clone.autoregressive.sampling import Draw, FilterFirstSampler
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.stack.native_stack import LoadLayer, NativeStack
from voice_clone.native.arrays import Array
from voice_clone.native.matrix.linear import NativeLinear, Workspace
from voice_clone.native.matrix.weights import Packed, embedding_array, head_precision, pack
from voice_clone.native.packed_file import Part, made
from voice_clone.native.thread_pool import thread_pool
from voice_clone.native.transformer import predictor
from voice_clone.native.transformer.decoder_stack import LAYER_PHASES
from voice_clone.settings import Precision

Load = Callable[[nn.Module, str], None]
"""Fills a module, given its name below the talker's."""


def layer_loader(load: Load | None, stack: str) -> LoadLayer | None:
    """Fills layer i of a stack, given the stack's name."""
    return None if load is None else lambda layer, index: load(layer, f"{stack}.layers.{index}")


class NativePredictor:
    """`PredictorParts`, and a `CodePredictor` whose loop over the codebooks is one call.

    Args:
        stack: its layers.
        heads: weights [V, C] of codebooks 1, 2, ..., or one for all.
        table: embeddings [tables * rows, H] of codebooks 1, 2, ..., or one table for all; fp32 or bf16.
        rows: of a table.
        codebooks: K.
        precision: of the heads, but not below int8.
        projection: from embeddings to hidden states, if their sizes differ.
        part: finds the packed heads.
    """

    def __init__(
        self,
        stack: NativeStack,
        heads: Sequence[Tensor],
        table: Tensor,
        rows: int,
        codebooks: int,
        precision: Precision,
        projection: nn.Linear | None = None,
        part: Part = made,
    ) -> None:
        kept = head_precision(precision)
        self.stack, self.codebooks = stack, codebooks
        self._vocabulary = size = len(heads[0])
        self._heads = packed = Packed(*part(lambda: _packed(heads, kept).arrays))
        self.lm_head = [NativeLinear(packed[index], size) for index in range(len(heads))]
        self._project = None if projection is None else NativeLinear.of(projection, kept)
        self.codec_embedding = table
        self._tables = embedding_array(table.view(-1, rows, table.shape[1]))
        self._projection = packed[0][:0] if self._project is None else self._project.packed
        bias = None if self._project is None else self._project.bias
        self._bias: Array = np.zeros(self._tables.shape[2], np.float32) if bias is None else bias.numpy()
        self._head_work, self._projection_work = Workspace(packed[0]), Workspace(self._projection)
        self._rows = 0
        self._places: Array
        self._shared: tuple[Array, ...]
        self._own: tuple[Array, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights that one pass over the layers reads."""
        return self.stack.nbytes

    @property
    def frame_bytes(self) -> int:
        """Bytes of the packed weights that a frame reads: layers and heads, as often as it reads them."""
        books = range(self.codebooks - 1)
        return len(books) * self.nbytes + sum(self.lm_head[book % len(self.lm_head)].nbytes for book in books)

    def project(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., C]."""
        return x if self._project is None else self._project(x)

    def logits(self, hidden: Tensor, book: int) -> Tensor:
        """[B, C] -> [B, V] of codebook `book`, 1..K-1."""
        found: Tensor = self.lm_head[(book - 1) % len(self.lm_head)](hidden)
        return found

    def embed(self, codes: Tensor, book: int = 1) -> Tensor:
        """Codes of codebook `book` and the following ones, int64 [B, N] -> [B, N, H]."""
        tables, size = self._tables.shape[:2]
        books = torch.arange(book - 1, book - 1 + codes.shape[1]) % tables
        return F.embedding(codes + books * size, self.codec_embedding).float()

    def new_memory(self, slots: int) -> KVCache:
        """As of `CodePredictor`."""
        return frame_cache(self, slots)

    def complete(self, cache: KVCache | None, hidden: Tensor, code0: Tensor, embed0: Tensor, draw: Draw) -> Tensor:
        """As `complete_by_steps` with the draw, in one call."""
        assert cache is not None
        x = self.project(torch.stack([hidden, embed0], dim=1))  # [B, 2, C]
        count, books = len(code0), self.codebooks - 1
        self._resize(count, cache.cos.shape[0])
        codes = np.zeros((count, books + 1), np.int64)
        codes[:, 0] = code0.numpy()
        finite = np.ones(count, np.bool_)
        stack, (logits, embeddings), filter_first = self.stack, self._shared, draw.rule is FilterFirstSampler
        thread_pool().run(
            predictor.predict,
            books * (LAYER_PHASES * len(stack.vectors[0]) + predictor.CODEBOOK_PHASES),
            (books + 1) * count * stack.multiplications,
            stack.weights,
            stack.vectors,
            stack.eps,
            tuple(tensor.numpy() for tensor in (cache.keys, cache.values, cache.cos, cache.sin)),
            self._places,
            stack.work.per_thread,
            stack.work.common,
            (*self._heads.arrays, *self._head_work.per_thread, logits),
            (*self._projection.arrays, *self._projection_work.per_thread, self._bias, embeddings),
            self._tables,
            (
                draw.options.contiguous().numpy(),
                draw.uniform.contiguous().numpy(),
                *self._own,
                filter_first,
            ),
            np.array(x.numpy()).reshape(2 * count, -1),
            codes,
            finite,
        )
        draw.finite = draw.finite & torch.from_numpy(finite)
        return torch.from_numpy(codes)

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


def _packed(heads: Sequence[Tensor], precision: Precision) -> Packed:
    packed = Packed.empty(len(heads), heads[0].shape, precision)
    for index, head in enumerate(heads):
        pack(head, precision, packed[index])
    return packed
