"""A causal transformer over a window of positions, exact in chunks of any size, or over a whole signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from voice_clone.layers.attention import (
    LayerScale,
    MLPKind,
    Norm,
    SlidingWindowAttention,
    WholeAttention,
    additive_mask,
    alibi_bias,
    alibi_slopes,
    make_mlp,
    make_norm,
    rotary_cos_sin,
    rotary_frequencies,
    sliding_window_mask,
)
from voice_clone.layers.graphs import CachedOnGpu, to_device
from voice_clone.layers.streaming import ChunkPass, Run, streaming_slots, whole


@dataclass(frozen=True)
class WindowConfig:
    """Sizes; a position sees itself and the `sliding_window - 1` positions before it; None: all before it.

    Attributes:
        rope_dtype: to which the rotary tables are rounded.
        alibi: scores fall with distance, and nothing is rotated.
        qk_norm_eps: as of `SlidingWindowAttention`.
        norm, mlp: as of `make_norm` and `make_mlp`.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    sliding_window: int | None
    rms_norm_eps: float
    rope_theta: float
    attention_bias: bool = False
    rope_dtype: torch.dtype = torch.float32
    alibi: bool = False
    qk_norm_eps: float | None = None
    norm: Norm = "rms"
    mlp: MLPKind = "gated"

    @classmethod
    def of(cls, sizes: Any) -> WindowConfig:
        """The sizes of a family's configuration, whose attributes have the same names."""
        names = list(cls.__dataclass_fields__)[:10]
        return cls(**{name: getattr(sizes, name) for name in names})


class WindowLayer(nn.Module):
    """Pre-norm attention and MLP, both residual branches scaled. x: [B, T, C]."""

    def __init__(self, config: WindowConfig) -> None:
        super().__init__()
        size, eps, window = config.hidden_size, config.rms_norm_eps, config.sliding_window
        heads = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.self_attn: Any
        if window is None:
            self.self_attn = WholeAttention(size, *heads, config.attention_bias)
        else:
            self.self_attn = SlidingWindowAttention(size, *heads, window, config.attention_bias, config.qk_norm_eps)
        self.mlp = make_mlp(config.mlp, size, config.intermediate_size)
        self.input_layernorm = make_norm(config.norm, size, eps)
        self.post_attention_layernorm = make_norm(config.norm, size, eps)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, x: Tensor, stream: Run, *context: Tensor) -> Tensor:
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
        self._frequencies: Tensor | None = None

    def forward(self, x: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        """`position` int64 [B]: of each stream's first row in x, counted from its beginning."""
        context = self._alibi(x, position) if self.config.alibi else self._rotary(x, position)
        for layer in self.layers:
            x = layer(x, stream, *context)
        return x

    def whole(self, x: Tensor) -> Tensor:
        """Whole signals, of layers without a window."""
        places = torch.arange(x.shape[1], device=x.device)
        for layer in self.layers:
            x = layer(x, whole, *rotary_cos_sin(places, self.config.head_dim, self.config.rope_theta))
        return x

    def in_pieces(self, x: Tensor, most: int) -> Tensor:
        """One signal [1, T, C], so many positions at once: memory grows with their square. -> [1, T, C]."""
        slots, done, out = streaming_slots(self), 0, []
        buffers = [module.new_state(1) for module in slots]
        for piece in torch.split(x, most, dim=1):
            stream = ChunkPass(slots, buffers)
            out.append(self(piece, stream, torch.full((1,), done, device=x.device)))
            buffers, done = stream.buffers, done + piece.shape[1]
        return torch.cat(out, dim=1)

    def _rotary(self, x: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """Rotary tables and mask."""
        config, length = self.config, x.shape[1]
        positions = position[:, None] + torch.arange(length, device=position.device)  # [B, T]
        head_dim, theta, device = config.head_dim, config.rope_theta, position.device
        if self._frequencies is None or self._frequencies.device != device:  # before a CUDA graph is captured
            with torch.inference_mode(False):
                self._frequencies = rotary_frequencies(head_dim, theta, device)
        cos, sin = rotary_cos_sin(positions, head_dim, theta, config.rope_dtype, self._frequencies)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)  # once, not in each layer
        assert config.sliding_window is not None
        mask = sliding_window_mask(position, length, config.sliding_window)
        return cos, sin, additive_mask(mask, x.dtype) if x.is_cuda else mask

    def _alibi(self, x: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """The mask with what is added to the scores."""
        length, window, device = x.shape[1], self.config.sliding_window, position.device
        heads = self.config.num_attention_heads
        assert window is not None
        slopes = self._cached.get(position, lambda: to_device(alibi_slopes(heads), device))
        mask = sliding_window_mask(position, length, window)
        return (additive_mask(mask, x.dtype, alibi_bias(slopes, length, window)),)


class WindowTransformer(WindowLayers):
    """Layers and the norm behind them. x: [B, T, C]."""

    def __init__(self, config: WindowConfig) -> None:
        super().__init__(config)
        self.norm = make_norm(config.norm, config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        normed: Tensor = self.norm(super().forward(x, stream, position))
        return normed
