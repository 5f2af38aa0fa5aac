"""A decoder layer: pre-norm, grouped-query attention with RoPE over a key-value cache, SwiGLU.

Qwen3 technical report (Yang et al. 2025), and its relatives by the options of `StackConfig`. Attribute names equal the
tensor names of Hugging Face's Qwen and Llama checkpoints below `...layers.N.`.

Shapes: B streams, T new positions, S positions read, C hidden size, H query heads, G key-value heads, D head dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.stack.config import StackConfig
from voice_clone.autoregressive.stack.kv_cache import KVCache, Span
from voice_clone.autoregressive.stack.rotary import rotate
from voice_clone.layers.attention import GatedMLP, RMSNorm, normalise
from voice_clone.layers.fused import fused_linear


class Attention(nn.Module):
    """Grouped-query attention over the cache."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.config = config
        self.head_dim, self.eps = config.head_dim, eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        parts = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        self.qkv_proj = fused_linear(self, "qkv_proj", size, parts, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, size, bias=False)
        if config.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, eps)
            self.k_norm = RMSNorm(self.head_dim, eps)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: KVCache, layer: int, span: Span
    ) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv_proj(x).view(batch, length, -1, self.head_dim)
        turned = self.heads + self.kv_heads
        qk = qkv[:, :, :turned]  # [B, T, H + G, D]
        if self.config.qk_norm:
            qk = normalise(qk, self.eps)
            qk[:, :, : self.heads].mul_(self.q_norm.weight)
            qk[:, :, self.heads :].mul_(self.k_norm.weight)
        qk = rotate(qk.transpose(1, 2), cos, sin, self.config)
        v = qkv[:, :, turned:].transpose(1, 2)
        k, v = cache.update(layer, qk[:, self.heads :], v, span)  # [B, G, S, D]
        # The H/G query heads of one key-value head are laid one after the other as queries of that head:
        # the same products as repeating keys and values H/G times, without the copies.
        q = qk[:, : self.heads].reshape(batch, self.kv_heads, -1, self.head_dim)  # [B, G, H/G * T, D]
        if span.each is None:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            rows = [slice(row, row + 1) for row in range(batch)]
            out = torch.cat(
                [
                    F.scaled_dot_product_attention(
                        q[row], k[row, :, self._first(seen) : seen], v[row, :, self._first(seen) : seen]
                    )
                    for row, seen in zip(rows, span.each, strict=True)
                ]
            )
        out = out.reshape(batch, self.heads, length, self.head_dim).transpose(1, 2).flatten(2)
        projected: Tensor = self.o_proj(out)
        return projected

    def _first(self, seen: int) -> int:
        """The first position that a query at position `seen - 1` sees."""
        return 0 if self.config.window is None else max(0, seen - self.config.window)


class DecoderLayer(nn.Module):
    """[B, T, C] -> [B, T, C]."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: KVCache, layer: int, span: Span
    ) -> Tensor:
        """`mask` is bool, broadcastable to [B, G, H/G * T, S], true where a query may look; None: everywhere."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask, cache, layer, span)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
