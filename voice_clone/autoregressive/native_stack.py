"""The decoder layers of a talker or a code predictor as one call of native code."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from voice_clone.autoregressive.decoder_layer import DecoderLayer, KVCache
from voice_clone.layers.attention import RMSNorm
from voice_clone.native.matrix.linear import Workspace
from voice_clone.native.matrix.weights import Array, Packed, Precision, pack
from voice_clone.native.thread_pool import thread_pool
from voice_clone.native.transformer.decoder_stack import LAYER_PHASES, decoder_stack


class StackWork(Workspace):
    """What a stack computes with, besides."""

    def __init__(self, size: int, widths: tuple[int, ...], *matrices: Packed) -> None:
        super().__init__(*matrices)
        self._size = size
        self._widths = widths
        self._positions = 0
        self.common: tuple[Array, ...]

    def resize_to(self, rows: int, positions: int) -> None:
        if rows == self._rows and positions == self._positions:
            return
        self._rows, self._positions = 0, positions
        self.resize(rows)
        threads = thread_pool().threads
        normed = np.zeros((threads, rows, self._size), np.float32)
        self.per_thread = (*self.per_thread, normed, np.zeros((threads, positions), np.float32))
        self.common = tuple(np.zeros((rows, width), np.float32) for width in self._widths)


class NativeStack:
    """Decoder layers and the norm behind them.

    Args:
        modules: the decoder layers, whose projections are packed one after the other and given up.
        norm: the last norm.
        precision: of the projections.

    Attributes:
        weights, norms, eps: as `decoder_stack` takes them.
        work: what it computes with.
        multiplications: of a row.
    """

    def __init__(self, modules: Iterable[nn.Module], norm: RMSNorm, precision: Precision) -> None:
        layers = [layer for layer in modules if isinstance(layer, DecoderLayer)]
        kinds = (
            [layer.self_attn.qkv_proj for layer in layers],
            [layer.self_attn.o_proj for layer in layers],
            [layer.mlp.gate_up_proj for layer in layers],
            [layer.mlp.down_proj for layer in layers],
        )
        stacked = [Packed.stack([pack(_taken(linear), precision) for linear in kind]) for kind in kinds]
        self.multiplications = sum(packed.values.size for packed in stacked)  # of a row
        self.weights = tuple(packed.arrays for packed in stacked)
        self.norms = (
            _rows([layer.input_layernorm.weight for layer in layers]),
            _rows([layer.post_attention_layernorm.weight for layer in layers]),
            _rows([layer.self_attn.q_norm.weight for layer in layers]),
            _rows([layer.self_attn.k_norm.weight for layer in layers]),
            _rows([norm.weight])[0],
        )
        self.eps = np.float32(norm.eps)
        attention, inner = layers[0].self_attn, layers[0].mlp.inner
        queries, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
        size = len(norm.weight)
        self.work = StackWork(size, (queries + 2 * keys, queries, 2 * inner, inner, size), *stacked)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed projections."""
        return sum(array.nbytes for arrays in self.weights for array in arrays)

    def __call__(self, x: Tensor, cache: KVCache, slots: Tensor, positions: Tensor) -> Tensor:
        """N new positions of any streams: x [N, C], slots and positions int64 [N] -> normed hidden states [N, C].

        A row sees its slot's positions up to its own, also those that come in the same call.
        """
        self.work.resize_to(x.shape[0], cache.cos.shape[0])
        out = np.empty(tuple(x.shape), np.float32)
        thread_pool().run(
            decoder_stack,
            LAYER_PHASES * len(self.norms[0]),
            len(x) * self.multiplications,
            self.weights,
            self.norms,
            self.eps,
            tuple(tensor.numpy() for tensor in (cache.keys, cache.values, cache.cos, cache.sin)),
            (slots.numpy(), positions.numpy()),
            self.work.per_thread,
            self.work.common,
            np.array(x.numpy()),
            out,
        )
        return torch.from_numpy(out)


def _taken(linear: nn.Linear) -> Tensor:
    """A projection's weight, which it has no more: all of them twice would be the most memory that loading takes."""
    weight = linear.weight.detach()
    del linear.weight
    return weight


def _rows(weights: list[Tensor]) -> Array:
    array: Array = torch.stack([weight.detach().float() for weight in weights]).numpy()
    return array
