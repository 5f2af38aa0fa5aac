"""Linear layers and stacks of decoder layers that run as native code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from voice_clone.native import kernels
from voice_clone.native.team import team
from voice_clone.native.weights import Array, Packed, Precision, pack

if TYPE_CHECKING:
    from voice_clone.qwen3_tts.decoder_layer import DecoderLayer, KVCache


class Buffers:
    """What the threads compute with; grows to the most rows that came."""

    def __init__(self, inputs: int, positions: int, *widths: int) -> None:
        """`inputs`: the widest row of a product; `positions`: the most of one stream; `widths`: of the shared rows."""
        self._inputs = inputs + -inputs % kernels.INT8_GROUP
        self._positions = positions
        self._widths = widths
        self._rows = 0

    def of(self, rows: int) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Each thread's own and the shared ones, of `rows` rows."""
        if rows > self._rows:
            self._rows, threads = rows, team().threads
            shape = threads, rows, self._inputs
            self._own = (
                np.zeros(shape, np.float32),
                np.zeros(shape, np.int16),
                np.zeros((threads, rows), np.float32),
                np.zeros((threads, rows, self._inputs // kernels.INT4_GROUP), np.int32),
            )
            self._scores = np.zeros((threads, self._positions), np.float32)
            self._common = tuple(np.zeros((rows, width), np.float32) for width in self._widths)
        own = tuple(array[:, :rows] for array in self._own)
        return (*own, self._scores), tuple(array[:rows] for array in self._common)


class NativeLinear(nn.Module):
    """As `nn.Linear`, fp32 in and out, the weight at some precision."""

    def __init__(self, linear: nn.Linear, precision: Precision) -> None:
        super().__init__()
        self._packed = pack(linear.weight.detach(), precision)
        self._bias = None if linear.bias is None else linear.bias.detach().float()
        self._outputs = linear.out_features
        self._buffers = Buffers(linear.in_features, 1)

    @property
    def nbytes(self) -> int:
        return self._packed.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        rows = x.reshape(-1, x.shape[-1]).numpy()
        out = np.empty((rows.shape[0], self._outputs), np.float32)
        own, _ = self._buffers.of(rows.shape[0])
        team().run(kernels.linear, *self._packed.arrays, rows, own, out)
        result = torch.from_numpy(out).view(*x.shape[:-1], -1)
        return result if self._bias is None else result.add_(self._bias)


class NativeStack:
    """Decoder layers and the norm behind them.

    Args:
        layers: whose weights are packed; they are not needed any more.
        norm: weight of the last norm.
        eps: of all norms.
        precision: of the projections.
    """

    def __init__(self, layers: list[DecoderLayer], norm: Tensor, eps: float, precision: Precision) -> None:
        kinds: dict[str, list[Packed]] = {"qkv": [], "o": [], "gate_up": [], "down": []}
        for layer in layers:
            attention, mlp = layer.self_attn, layer.mlp
            linears = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
            for packed, linear in zip(kinds.values(), linears, strict=True):
                assert isinstance(linear, nn.Linear) and linear.bias is None
                packed.append(pack(linear.weight.detach(), precision))
        self._weights = tuple(Packed.stack(packed).arrays for packed in kinds.values())
        self._norms = (
            _rows([layer.input_layernorm.weight for layer in layers]),
            _rows([layer.post_attention_layernorm.weight for layer in layers]),
            _rows([layer.self_attn.q_norm.weight for layer in layers]),
            _rows([layer.self_attn.k_norm.weight for layer in layers]),
            _rows([norm])[0],
        )
        self._eps = np.float32(eps)
        first = layers[0]
        attention, mlp = first.self_attn, first.mlp
        inner = mlp.down_proj.in_features
        queries = attention.heads * attention.head_dim
        self._widths = (queries + 2 * attention.kv_heads * attention.head_dim, queries, inner, 2 * inner)
        self._inputs = max(first.input_layernorm.weight.shape[0], queries, inner)
        self._buffers: Buffers | None = None

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes + groups.nbytes for values, groups in self._weights)

    def __call__(self, x: Tensor, cache: KVCache, slots: Tensor, positions: Tensor) -> Tensor:
        """N new positions of any streams: x [N, C], slots and positions int64 [N] -> normed hidden states [N, C].

        A row sees its slot's positions up to its own, also those that come in the same call.
        """
        tensors = (cache.keys, cache.values, cache.cos, cache.sin)
        if self._buffers is None or self._buffers._positions < cache.cos.shape[0]:
            self._buffers = Buffers(self._inputs, cache.cos.shape[0], *self._widths)
        own, common = self._buffers.of(x.shape[0])
        out = np.empty(tuple(x.shape), np.float32)
        team().run(
            kernels.stack,
            self._weights,
            self._norms,
            self._eps,
            tuple(tensor.numpy() for tensor in tensors),
            (slots.numpy(), positions.numpy()),
            own,
            common,
            x.numpy().copy(),
            out,
        )
        return torch.from_numpy(out)


def _rows(weights: list[Tensor]) -> Array:
    array: Array = torch.stack([weight.detach().float() for weight in weights]).numpy()
    return array
