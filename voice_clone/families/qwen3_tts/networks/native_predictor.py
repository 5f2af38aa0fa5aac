"""The code predictor's loop over the codebooks as one call of native code."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from voice_clone.autoregressive.decoder_layer import KVCache
from voice_clone.autoregressive.native_stack import NativeStack
from voice_clone.autoregressive.sampling import Draw
from voice_clone.native.matrix.linear import NativeLinear, Workspace
from voice_clone.native.matrix.weights import Array, Packed, embedding_array
from voice_clone.native.thread_pool import thread_pool
from voice_clone.native.transformer import predictor
from voice_clone.native.transformer.decoder_stack import LAYER_PHASES


class NativePredictor:
    """Draws codebooks 1 to K - 1 of N frames.

    Args:
        stack: the layers.
        heads: of each codebook, [K - 1, V, C].
        vocabulary: V.
        tables: fp32 or bf16 [K - 1, V, H], embeddings of codebook 1, 2, ...; they stay where they are.
        projection: from embeddings to hidden states, if there is one.
    """

    def __init__(
        self, stack: NativeStack, heads: Packed, vocabulary: int, tables: Tensor, projection: NativeLinear | None
    ) -> None:
        self._stack = stack
        self._heads, self._vocabulary = heads, vocabulary
        self._tables = embedding_array(tables)
        size = tables.shape[2]
        self._projection = heads[0][:0] if projection is None else projection.packed
        bias = None if projection is None else projection.bias
        self._bias: Array = np.zeros(size if bias is None else len(bias), np.float32) if bias is None else bias.numpy()
        self._head_work, self._projection_work = Workspace(heads[0]), Workspace(self._projection)
        self._rows = 0
        self._places: Array
        self._shared: tuple[Array, ...]
        self._own: tuple[Array, ...]

    def __call__(self, cache: KVCache, x: Tensor, code0: Tensor, draw: Draw) -> Tensor:
        """As `CodePredictor.predict`: x [N, 2, C], hidden state and code 0 as the layers take them -> int64 [N, K]."""
        count, books = len(code0), len(self._tables)
        self._resize(count, cache.cos.shape[0])
        codes = np.zeros((count, books + 1), np.int64)
        codes[:, 0] = code0.numpy()
        finite = np.ones(count, np.bool_)
        stack, (logits, embeddings) = self._stack, self._shared
        thread_pool().run(
            predictor.predict,
            books * (LAYER_PHASES * len(stack.norms[0]) + predictor.CODEBOOK_PHASES),
            (books + 1) * count * stack.multiplications,
            stack.weights,
            stack.norms,
            stack.eps,
            tuple(tensor.numpy() for tensor in (cache.keys, cache.values, cache.cos, cache.sin)),
            self._places,
            stack.work.per_thread,
            stack.work.common,
            (*self._heads.arrays, *self._head_work.per_thread, logits),
            (*self._projection.arrays, *self._projection_work.per_thread, self._bias, embeddings),
            self._tables,
            (draw.knobs.contiguous().numpy(), draw.uniform.contiguous().numpy(), *self._own),
            np.array(x.numpy()).reshape(2 * count, -1),
            codes,
            finite,
        )
        draw.finite = draw.finite & torch.from_numpy(finite)
        return torch.from_numpy(codes)

    def _resize(self, count: int, positions: int) -> None:
        """Memory for so many streams."""
        self._stack.work.resize_to(2 * count, positions)
        if count == self._rows:
            return
        self._rows = count
        for work in (self._head_work, self._projection_work):
            work.resize(count)
        books, size = len(self._tables), self._vocabulary
        self._places = np.zeros((books, 2, 2 * count), np.int64)
        self._places[0] = np.repeat(np.arange(count), 2), np.tile([0, 1], count)
        self._places[1:, 0, :count] = np.arange(count)
        self._places[1:, 1] = np.arange(2, books + 1)[:, None]
        threads = thread_pool().threads
        self._shared = tuple(np.zeros((count, width), np.float32) for width in (size, self._tables.shape[2]))
        self._own = tuple(np.zeros((threads, size), kind) for kind in (np.int32, np.float32))
