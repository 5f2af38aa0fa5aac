"""The flow head's transformer as native products, with numpy between them. Needs no torch.

The last layer computes the first position alone, which a `NativeStack` would not: with three positions that is a third
of a layer's products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voice_clone.autoregressive.native_parts import NativeParts
from voice_clone.families.voxtral.config import FlowConfig
from voice_clone.native.arrays import Array
from voice_clone.native.matrix.linear import PackedLinear
from voice_clone.native.matrix.weights import as_float32
from voice_clone.native.silu import silu


@dataclass(frozen=True)
class Layer:
    """Pre-norm attention, in which all positions see each other, and MLP.

    Attributes:
        norms: of both parts [C].
        qkv, out, gate_up, down: the projections.
    """

    norms: tuple[Array, Array]
    qkv: PackedLinear
    out: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear

    def __call__(self, x: Array, sizes: FlowConfig, count: int) -> Array:
        """[B, T, C] -> [B, count, C], of the first positions."""
        batch, length, _ = x.shape
        groups, dim = sizes.n_kv_heads, sizes.head_dim
        heads = self.qkv(normed(x, self.norms[0], sizes.norm_eps)).reshape(batch, length, -1, dim).swapaxes(1, 2)
        queries = heads[:, : sizes.n_heads, :count].reshape(batch, groups, -1, dim)
        keys, values = (np.ascontiguousarray(each) for each in np.split(heads[:, sizes.n_heads :], 2, axis=1))
        scores = queries @ keys.swapaxes(2, 3) * np.float32(dim**-0.5)  # [B, groups, heads of a group * count, T]
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        seen = (weights / weights.sum(axis=-1, keepdims=True)) @ values
        rows = seen.reshape(batch, sizes.n_heads, count, dim).swapaxes(1, 2).reshape(batch, count, -1)
        x = x[:, :count] + self.out(rows)
        gates, up = np.split(self.gate_up(normed(x, self.norms[1], sizes.norm_eps)), 2, axis=-1)
        return x + self.down(silu(gates) * up)


@dataclass(frozen=True)
class NativeFlow:
    """All layers and the norm behind them."""

    sizes: FlowConfig
    layers: Sequence[Layer]
    norm: Array

    def __call__(self, rows: Array) -> Array:
        """[B, T, C] -> the normed result of the first position [B, C]."""
        for number, layer in enumerate(self.layers, start=1):
            rows = layer(rows, self.sizes, 1 if number == len(self.layers) else rows.shape[1])
        return normed(rows[:, 0], self.norm, self.sizes.norm_eps)


def normed(x: Array, weight: Array, eps: float) -> Array:
    """Root-mean-square normalisation of the last dimension."""
    power = np.square(x).mean(axis=-1, keepdims=True)
    made: Array = x / np.sqrt(power + np.float32(eps)) * weight
    return made


def native_flow(sizes: FlowConfig, parts: NativeParts) -> NativeFlow:
    """The transformer, its weights rounded as those of the backbone's layers."""
    queries, keys = sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim

    def norm(name: str) -> Array:
        return as_float32(parts.read(f"flow.{name}.weight", (sizes.dim,)))

    def layer(name: str) -> Layer:
        def linear(inputs: int, outputs: int, *names: str) -> PackedLinear:
            found = {f"flow.{name}.{each}_proj": outputs for each in names}
            return parts.linear(found, inputs, bias=False, precision=parts.precision)

        attention = {"q": queries, "k": keys, "v": keys}
        qkv = {f"flow.{name}.self_attn.{part}_proj": count for part, count in attention.items()}

        return Layer(
            (norm(f"{name}.input_layernorm"), norm(f"{name}.post_attention_layernorm")),
            parts.linear(qkv, sizes.dim, bias=False, precision=parts.precision),
            linear(queries, sizes.dim, "self_attn.o"),
            linear(sizes.dim, sizes.hidden_dim, "mlp.gate", "mlp.up"),
            linear(sizes.hidden_dim, sizes.dim, "mlp.down"),
        )

    return NativeFlow(sizes, [layer(f"layers.{number}") for number in range(sizes.n_layers)], norm("norm"))
