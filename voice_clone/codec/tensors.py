"""The tensors of a checkpoint's codec as float32 arrays, and chains of native code made of them. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from voice_clone.mapped_weights import Read
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain_builder import ChainBuilder
from voice_clone.native.matrix.weights import as_float32


@dataclass(frozen=True)
class LayerSizes:
    """Of a transformer's layers: as of `WindowConfig` in layers/window_transformer.py."""

    size: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    bias: bool = False


class Tensors:
    """Reads tensors by their names."""

    def __init__(self, read: Read) -> None:
        self._tensors = read

    def read(self, name: str, *shape: int) -> Array:
        return as_float32(self._tensors(name, shape))

    def linear(self, name: str, outputs: int, inputs: int, bias: bool = True) -> tuple[Array, Array | None]:
        """Weight and bias of a linear layer."""
        return self.read(f"{name}.weight", outputs, inputs), self.read(f"{name}.bias", outputs) if bias else None

    def convolution(self, name: str, *shape: int) -> tuple[Array, Array]:
        """Weight [O, C, K] and bias of a convolution."""
        return self.read(f"{name}.conv.weight", *shape), self.read(f"{name}.conv.bias", shape[0])

    def transposed(self, name: str, *shape: int) -> tuple[Array, Array]:
        """Weight [C, O, K] and bias of a transposed convolution."""
        return self.read(f"{name}.conv.weight", *shape), self.read(f"{name}.conv.bias", shape[1])

    def add_layer(self, chain: ChainBuilder, name: str, sizes: LayerSizes, attention: Callable[[], None]) -> None:
        """Add a layer with a gated MLP, both residual branches scaled; what is before it has set the residual signal.

        Args:
            attention: adds what turns rows of queries, keys and values into those of heads.
        """
        size, inner, queries, keys = (
            sizes.size,
            sizes.inner,
            sizes.heads * sizes.head_dim,
            sizes.kv_heads * sizes.head_dim,
        )
        chain.norm(self.read(f"{name}.input_layernorm.weight", size), sizes.eps)
        rows = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        parts = [self.linear(f"{name}.self_attn.{each}", count, size, sizes.bias) for each, count in rows.items()]
        weights, biases = zip(*parts, strict=True)
        chain.linear(np.concatenate(weights), np.concatenate(biases) if sizes.bias else None)
        attention()
        scale = self.read(f"{name}.self_attn_layer_scale.scale", size)
        out = self.linear(f"{name}.self_attn.o_proj", size, queries, sizes.bias)
        chain.linear(*scaled(scale, *out), residual="added")
        chain.norm(self.read(f"{name}.post_attention_layernorm.weight", size), sizes.eps)
        gate_and_up = [self.read(f"{name}.mlp.{each}.weight", inner, size) for each in ("gate_proj", "up_proj")]
        chain.linear(np.concatenate(gate_and_up))
        chain.gate()
        scale = self.read(f"{name}.mlp_layer_scale.scale", size)
        chain.linear(*scaled(scale, self.read(f"{name}.mlp.down_proj.weight", size, inner)), residual="added")


def scaled(scale: Array, weight: Array, bias: Array | None = None) -> tuple[Array, Array | None]:
    """A linear layer whose outputs are scaled."""
    return scale[:, None] * weight, None if bias is None else scale * bias
