"""Linear layers and stacks of decoder layers that run as native code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from voice_clone.layers.attention import RMSNorm
from voice_clone.native import kernels
from voice_clone.native.team import team
from voice_clone.native.weights import Array, Packed, Precision, pack
from voice_clone.qwen3_tts.decoder_layer import DecoderLayer, KVCache


class Buffers:
    """What products are computed with, for as many rows as were asked for last.

    Args:
        inputs: the widest row of a product.
    """

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs + -inputs % kernels.GROUP
        self.rows = 0

    def resize(self, rows: int) -> None:
        threads = team().threads
        self.rows = rows
        self.own: tuple[Array, ...] = (  # of each thread: rounded rows, their scales
            np.zeros((threads, rows, self._inputs), np.int16),
            np.zeros((threads, rows), np.float32),
        )


class NativeLinear(nn.Module):
    """As `nn.Linear`, fp32 in and out, the weight at some precision."""

    def __init__(self, linear: nn.Linear, precision: Precision) -> None:
        super().__init__()
        self._packed = pack(linear.weight.detach(), precision)
        self._bias = None if linear.bias is None else linear.bias.detach().float()
        self._outputs = linear.out_features
        self._buffers = Buffers(linear.in_features)

    @property
    def nbytes(self) -> int:
        return self._packed.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        flat = x.reshape(-1, x.shape[-1])
        rows = _padded(flat, self._packed.rows)
        out = np.empty((rows.shape[0], self._outputs), np.float32)
        if self._buffers.rows != rows.shape[0]:
            self._buffers.resize(rows.shape[0])
        team().run(kernels.linear, *self._packed.arrays, rows.numpy(), self._buffers.own, out)
        result = torch.from_numpy(out[: flat.shape[0]]).view(*x.shape[:-1], -1)
        return result if self._bias is None else result.add_(self._bias)


class _StackBuffers(Buffers):
    """Also a stack's normed rows and attention scores of each thread, and the rows that the threads share."""

    def __init__(self, size: int, inputs: int, widths: tuple[int, ...]) -> None:
        super().__init__(inputs)
        self._size = size
        self._widths = widths
        self.positions = 0

    def resize(self, rows: int) -> None:
        super().resize(rows)
        threads = team().threads
        normed = np.zeros((threads, rows, self._size), np.float32)
        self.own = (*self.own, normed, np.zeros((threads, self.positions), np.float32))
        self.common = tuple(np.zeros((rows, width), np.float32) for width in self._widths)


class NativeStack:
    """Decoder layers and the norm behind them.

    Args:
        layers: whose weights are packed; they are not needed any more.
        norm: the last norm.
        precision: of the projections.
    """

    def __init__(self, layers: Sequence[DecoderLayer], norm: RMSNorm, precision: Precision) -> None:
        kinds: dict[str, list[Packed]] = {"qkv": [], "o": [], "gate_up": [], "down": []}
        for layer in layers:
            attention, mlp = layer.self_attn, layer.mlp
            linears = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
            for packed, linear in zip(kinds.values(), linears, strict=True):
                assert isinstance(linear, nn.Linear) and linear.bias is None
                packed.append(pack(linear.weight.detach(), precision))
        stacked = [Packed.stack(packed) for packed in kinds.values()]
        self._weights = tuple(packed.arrays for packed in stacked)
        self._multiple = stacked[0].rows
        self._norms = (
            _rows([layer.input_layernorm.weight for layer in layers]),
            _rows([layer.post_attention_layernorm.weight for layer in layers]),
            _rows([layer.self_attn.q_norm.weight for layer in layers]),
            _rows([layer.self_attn.k_norm.weight for layer in layers]),
            _rows([norm.weight])[0],
        )
        self._eps = np.float32(norm.eps)
        first = layers[0]
        attention, mlp = first.self_attn, first.mlp
        inner = mlp.down_proj.in_features
        queries = attention.heads * attention.head_dim
        widths = (queries + 2 * attention.kv_heads * attention.head_dim, queries, inner, 2 * inner)
        self._size = first.input_layernorm.weight.shape[0]
        self._buffers = _StackBuffers(self._size, max(self._size, queries, inner), widths)

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes + groups.nbytes for values, groups in self._weights)

    def __call__(self, x: Tensor, cache: KVCache, slots: Tensor, positions: Tensor) -> Tensor:
        """N new positions of any streams: x [N, C], slots and positions int64 [N] -> normed hidden states [N, C].

        A row sees its slot's positions up to its own, also those that come in the same call.
        """
        tensors = (cache.keys, cache.values, cache.cos, cache.sin)
        rows, count, length = _padded(x, self._multiple), x.shape[0], cache.cos.shape[0]
        if self._buffers.rows != rows.shape[0] or self._buffers.positions != length:
            self._buffers.positions = length
            self._buffers.resize(rows.shape[0])
        out = np.empty(tuple(rows.shape), np.float32)
        team().run(
            kernels.stack,
            self._weights,
            self._norms,
            self._eps,
            tuple(tensor.numpy() for tensor in tensors),
            tuple(_padded(each, self._multiple).numpy() for each in (slots, positions)),
            self._buffers.own,
            self._buffers.common,
            rows.numpy(),
            out,
        )
        return torch.from_numpy(out[:count])


def _padded(rows: Tensor, multiple: int) -> Tensor:
    """A copy whose number of rows is 1 or a multiple of `multiple`: the last one is repeated."""
    count = rows.shape[0]
    missing = -count % multiple if count > 1 else 0
    return torch.cat([rows, *[rows[-1:]] * missing])


def _rows(weights: list[Tensor]) -> Array:
    array: Array = torch.stack([weight.detach().float() for weight in weights]).numpy()
    return array
