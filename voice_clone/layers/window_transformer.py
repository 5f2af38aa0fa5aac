"""A causal transformer over a window of positions, exact in chunks of any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from voice_clone.layers.attention import (
    GatedMLP,
    LayerScale,
    RMSNorm,
    SlidingWindowAttention,
    additive_mask,
    alibi_bias,
    alibi_slopes,
    rotary_cos_sin,
    rotary_frequencies,
    sliding_window_mask,
)
from voice_clone.layers.graphs import CachedOnGpu, to_device
from voice_clone.layers.streaming import ChunkPass


@dataclass(frozen=True)
class WindowConfig:
    """Sizes; a position sees itself and the `sliding_window - 1` positions before it.

    Attributes:
        rope_dtype: to which the rotary tables are rounded.
        alibi: scores fall with distance, and nothing is rotated.
        qk_norm_eps: as of `SlidingWindowAttention`.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    sliding_window: int
    rms_norm_eps: float
    rope_theta: float
    attention_bias: bool = False
    rope_dtype: torch.dtype = torch.float32
    alibi: bool = False
    qk_norm_eps: float | None = None

    @classmethod
    def of(cls, sizes: Any) -> WindowConfig:
        """The sizes of a family's configuration, whose attributes have the same names."""
        names = list(cls.__dataclass_fields__)[:10]
        return cls(**{name: getattr(sizes, name) for name in names})


class WindowLayer(nn.Module):
    """Pre-norm attention and MLP, both residual branches scaled. x: [B, T, C]."""

    def __init__(self, config: WindowConfig) -> None:
        super().__init__()
        self.self_attn = SlidingWindowAttention(
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.sliding_window,
            config.attention_bias,
            config.qk_norm_eps,
        )
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, x: Tensor, stream: ChunkPass, *context: Tensor) -> Tensor:
        """`context`: as of `SlidingWindowAttention.stream`."""
        heads = stream(self.self_attn, self.input_layernorm(x), *context)
        x = self.self_attn_layer_scale.added(x, heads)
        return self.mlp_layer_scale.added(x, self.mlp(self.post_attention_layernorm(x)))


class WindowLayers(nn.Module):
    """Layers, without a norm behind them. x: [B, T, C]."""

    def __init__(self, config: WindowConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(WindowLayer(config) for _ in range(config.num_hidden_layers))
        self._cached: CachedOnGpu[Tensor] = CachedOnGpu()

    def forward(self, x: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        """`position` int64 [B]: of each stream's first row in x, counted from its beginning."""
        context = self._alibi(x, position) if self.config.alibi else self._rotary(x, position)
        for layer in self.layers:
            x = layer(x, stream, *context)
        return x

    def _rotary(self, x: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """Rotary tables and mask."""
        config, length = self.config, x.shape[1]
        positions = position[:, None] + torch.arange(length, device=position.device)  # [B, T]
        head_dim, theta, device = config.head_dim, config.rope_theta, position.device
        frequencies = self._cached.get(position, lambda: rotary_frequencies(head_dim, theta, device))
        cos, sin = rotary_cos_sin(positions, head_dim, theta, config.rope_dtype, frequencies)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)  # once, not in each layer
        mask = sliding_window_mask(position, length, config.sliding_window)
        return cos, sin, additive_mask(mask, x.dtype) if x.is_cuda else mask

    def _alibi(self, x: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """The mask with what is added to the scores."""
        length, window, device = x.shape[1], self.config.sliding_window, position.device
        heads = self.config.num_attention_heads
        slopes = self._cached.get(position, lambda: to_device(alibi_slopes(heads), device))
        mask = sliding_window_mask(position, length, window)
        return (additive_mask(mask, x.dtype, alibi_bias(slopes, length, window)),)


class WindowTransformer(WindowLayers):
    """Layers and the norm behind them. x: [B, T, C]."""

    def __init__(self, config: WindowConfig) -> None:
        super().__init__(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        normed: Tensor = self.norm(super().forward(x, stream, position))
        return normed
