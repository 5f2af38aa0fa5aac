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
from voice_clone.autoregressive.stack.line_cache import LineCache
from voice_clone.autoregressive.stack.rotary import rotate
from voice_clone.autoregressive.stack.turns import turn_in_place
from voice_clone.layers.attention import GatedMLP, RMSNorm, normalise
from voice_clone.layers.fused import fused_linear
from voice_clone.layers.graphs import CachedOnGpu

Turn = tuple[Tensor, ...]
"""Turns queries and keys: cos and sin [.., T, D] of `rotate`; on a GPU a table of `turn_in_place`."""


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
        self._columns: CachedOnGpu[Tensor] = CachedOnGpu()  # of the output projection, for another order of heads

    def forward(
        self, x: Tensor, turn: Turn, mask: Tensor | None, cache: KVCache, layer: int, span: Span
    ) -> tuple[Tensor, Tensor]:
        """[B, T, C] -> the heads' results [B, T, H * D], and the weight [C, H * D] that they are projected by."""
        batch, length, _ = x.shape
        if span.own is not None:
            return self._attended_alone(x, turn, cache, layer, span), self.o_proj.weight
        q, k, v = self._projected(x, turn, cache, layer, span)
        # The H/G query heads of one key-value head are laid one after the other as queries of that head:
        # the same products as repeating keys and values H/G times, without the copies.
        q = q.reshape(batch, self.kv_heads, -1, self.head_dim)  # [B, G, H/G * T, D]
        if span.owner is not None:
            out = _attend_as_owners(q, k, v, mask, *span.owner)
        elif span.each is None:
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
        grouped = length == 1 < self.kv_heads < self.heads
        if out.is_cuda and grouped and out.transpose(1, 2).is_contiguous():
            # CUDA's memory-efficient kernel writes the first head of every group, then the second of every group. The
            # results stay so, and the projection's columns were put in that order once.
            return out.transpose(1, 2).flatten(1)[:, None], self._columns.get(self.o_proj.weight, self._reordered)
        return torch.unflatten(out, 2, (-1, length)).permute(0, 3, 1, 2, 4).flatten(2), self.o_proj.weight

    def _attended_alone(self, x: Tensor, turn: Turn, cache: KVCache, layer: int, span: Span) -> Tensor:
        """[B, 1, C] -> the heads' results [B, 1, H * D]; each stream reads its own length alone."""
        assert span.own is not None
        qkv = self._projection(x, turn)
        cache.write(layer, (qkv[:, :, self.heads :].transpose(1, 2),), span)
        out = span.own.attend(qkv[:, 0], cache.of_layer(layer))
        return out[:, None, : self.heads].flatten(2)

    def _reordered(self) -> Tensor:
        """The output projection for heads in the order (head of a group, group). A copy: the weights stay official."""
        heads = torch.unflatten(self.o_proj.weight, 1, (self.kv_heads, -1, self.head_dim))
        return heads.transpose(1, 2).flatten(1)

    def _projected(
        self, x: Tensor, turn: Turn, cache: KVCache, layer: int, span: Span
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, H, T, D], and all keys and values that they read, [B, G, S, D] each."""
        if isinstance(cache, LineCache):
            lines = cache.project(x, self.qkv_proj, layer, span.length - x.shape[1])
            turn_in_place(lines, turn[0].unsqueeze(1), self.config, self.eps)
            return lines[:, :, : self.heads].permute(1, 2, 0, 3), *cache.read(layer, len(x), span.length)
        if x.is_cuda:
            qkv = self._projection(x, turn)
            q, kv = torch.split(qkv.transpose(1, 2), [self.heads, 2 * self.kv_heads], dim=1)
            return q, *cache.update(layer, (kv,), span)
        q, k, v = self._turned(self._projection(x), turn[0], turn[1])
        return q, *cache.update(layer, (k, v), span)

    def _projection(self, x: Tensor, turn: Turn | None = None) -> Tensor:
        """[B, T, C] -> [B, T, H + 2 G, D]; with `turn` on a GPU its queries and keys are turned."""
        qkv: Tensor = self.qkv_proj(x).view(*x.shape[:2], -1, self.head_dim)
        if turn is not None:
            turn_in_place(qkv, turn[0], self.config, self.eps)
        return qkv

    def _turned(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, H + 2 G, D] -> queries [B, H, T, D], keys and values [B, G, T, D]; on a CPU."""
        sizes = [self.heads, self.kv_heads]
        qk = qkv[:, :, : sum(sizes)]
        if self.config.qk_norm:
            queries, keys = self.q_norm.weight.expand(self.heads, -1), self.k_norm.weight.expand(self.kv_heads, -1)
            qk = normalise(qk, self.eps).mul_(torch.cat([queries, keys]))
        q, k = torch.split(rotate(qk.transpose(1, 2), cos, sin, self.config), sizes, dim=1)
        return q, k, qkv[:, :, sum(sizes) :].transpose(1, 2)

    def _first(self, seen: int) -> int:
        """The first position that a query at position `seen - 1` sees."""
        return 0 if self.config.window is None else max(0, seen - self.config.window)


def _attend_as_owners(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, owner: Tensor, places: Tensor) -> Tensor:
    """Attention of B positions of R streams, each to its own stream.

    Every position attends to every stream, and one result is picked: values of one stream, finite or not, never meet
    those of another, and the shapes depend on numbers alone.

    Args:
        q: [B, G, H/G, D].
        k, v: [R, G, S, D].
        mask: broadcastable to [B * H/G, S].
        owner: int64 [B], below R.
        places: int64 [B], 0..B-1.

    Returns:
        [B, G, H/G, D].
    """
    batch, groups, heads, dim = q.shape
    queries = q.transpose(0, 1).reshape(1, groups, batch * heads, dim).expand(len(k), -1, -1, -1)
    out = F.scaled_dot_product_attention(queries, k, v, attn_mask=mask)
    picked: Tensor = out.view(len(k), groups, batch, heads, dim)[owner, :, places]
    return picked


class DecoderLayer(nn.Module):
    """[B, T, C] -> [B, T, C]."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, turn: Turn, mask: Tensor | None, cache: KVCache, layer: int, span: Span) -> Tensor:
        """Overwrites x. `mask` is bool, or added to the scores; broadcastable to [B, G, H/G * T, S], true where a query
        may look; None: everywhere.
        """
        heads, weight = self.self_attn(self.input_layernorm(x), turn, mask, cache, layer, span)
        _add_product(x, heads, weight)
        return _add_product(x, self.mlp.hidden(self.post_attention_layernorm(x)), self.mlp.down_proj.weight)


def _add_product(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """x + y times the weight of a projection without bias, in x: one kernel."""
    x.view(-1, x.shape[-1]).addmm_(y.view(-1, y.shape[-1]), weight.T)
    return x
