"""A stack of decoder layers with a key-value cache: reads prompts, advances streams. torch's own way.

A layer: pre-norm, grouped-query attention with RoPE over a key-value cache, SwiGLU (Qwen3 technical report, Yang et al.
2025; its relatives by the options of `StackConfig`). Attribute names equal the tensor names of Hugging Face's Qwen and
Llama checkpoints below `...layers.N.`.

Shapes: B streams, T new positions, S positions read, C hidden size, H query heads, G key-value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.stack.kv_cache import KVCache, OneCall, PackedKVCache, Span, visible
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.stack.rope import (
    fold_norms,
    for_all_heads,
    norm_and_rotate_in_place,
    norm_tables,
)
from voice_clone.autoregressive.stack.varlen_attention import Starts, VarlenDecode, VarlenPrefill, varlen_works
from voice_clone.layers.attention import RMSNorm, additive_mask, apply_rotary, make_mlp, make_norm, normalise
from voice_clone.layers.fused import fused_linear
from voice_clone.layers.graphs import CachedOnGpu

LEAST_TOGETHER = 64  # positions whose rotary tables are made at once

Rotation = tuple[Tensor, ...]
"""Turns queries and keys: cos and sin [.., T, D] of `apply_rotary`; on a GPU a table of `norm_and_rotate_in_place`."""


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
        self, x: Tensor, rotation: Rotation, mask: Tensor | None, cache: KVCache, layer: int, span: Span
    ) -> tuple[Tensor, Tensor | nn.Module]:
        """[B, T, C] -> the heads' results [B, T, H * D], and what projects them: as of `_add_projected`."""
        batch, length, _ = x.shape
        if span.varlen is not None:
            return self._attend_varlen(x, rotation, cache, layer, span), self.o_proj
        q, k, v = self._projected(x, rotation, cache, layer, span)
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
                    F.scaled_dot_product_attention(q[row], k[row, :, :seen], v[row, :, :seen])
                    for row, seen in zip(rows, span.each, strict=True)
                ]
            )
        grouped = length == 1 < self.kv_heads < self.heads
        if out.is_cuda and grouped and out.transpose(1, 2).is_contiguous():
            # CUDA's memory-efficient kernel writes the first head of every group, then the second of every group. The
            # results stay so, and the projection's columns were put in that order once.
            return out.transpose(1, 2).flatten(1)[:, None], self._columns.get(self.o_proj.weight, self._reordered)
        return torch.unflatten(out, 2, (-1, length)).permute(0, 3, 1, 2, 4).flatten(2), self.o_proj

    def _attend_varlen(self, x: Tensor, rotation: Rotation, cache: KVCache, layer: int, span: Span) -> Tensor:
        """[B, 1, C] -> the heads' results [B, 1, H * D]; each stream reads its own length alone."""
        assert span.varlen is not None
        qkv = self._projection(x, rotation)
        cache.write(layer, (qkv[:, :, self.heads :].transpose(1, 2),), span)
        out = span.varlen.attend(qkv[:, 0], cache.of_layer(layer))
        return out[:, None, : self.heads].flatten(2)

    def _reordered(self) -> Tensor:
        """The output projection for heads in the order (head of a group, group). A copy: the weights stay official."""
        heads = torch.unflatten(self.o_proj.weight, 1, (self.kv_heads, -1, self.head_dim))
        return heads.transpose(1, 2).flatten(1)

    def _projected(
        self, x: Tensor, rotation: Rotation, cache: KVCache, layer: int, span: Span
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, H, T, D], and all keys and values that they read, [B, G, S, D] each."""
        if isinstance(cache, PackedKVCache):
            packed = cache.project(x, self.qkv_proj, layer, span.length - x.shape[1])
            norm_and_rotate_in_place(packed, rotation[0].unsqueeze(1), self.config, self.eps)
            return packed[:, :, : self.heads].permute(1, 2, 0, 3), *cache.read(layer, len(x), span.length)
        if x.is_cuda:
            qkv = self._projection(x, rotation)
            q, kv = torch.split(qkv.transpose(1, 2), [self.heads, 2 * self.kv_heads], dim=1)
            return q, *cache.update(layer, (kv,), span)
        q, k, v = self._turned(self._projection(x), rotation[0], rotation[1])
        return q, *cache.update(layer, (k, v), span)

    def _projection(self, x: Tensor, rotation: Rotation | None = None) -> Tensor:
        """[B, T, C] -> [B, T, H + 2 G, D]; with `rotation` on a GPU its queries and keys are turned."""
        qkv: Tensor = self.qkv_proj(x).view(*x.shape[:2], -1, self.head_dim)
        if rotation is not None:
            norm_and_rotate_in_place(qkv, rotation[0], self.config, self.eps)
        return qkv

    def _turned(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, H + 2 G, D] -> queries [B, H, T, D], keys and values [B, G, T, D]; on a CPU."""
        sizes = [self.heads, self.kv_heads]
        qk = qkv[:, :, : sum(sizes)]
        if self.config.qk_norm:
            queries, keys = self.q_norm.weight.expand(self.heads, -1), self.k_norm.weight.expand(self.kv_heads, -1)
            qk = normalise(qk, self.eps).mul_(torch.cat([queries, keys]))
        q, k = torch.split(apply_rotary(qk.transpose(1, 2), cos, sin), sizes, dim=1)
        return q, k, qkv[:, :, sum(sizes) :].transpose(1, 2)


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
        self.mlp: Any = make_mlp(config.mlp, config.hidden_size, config.intermediate_size)
        self.input_layernorm = make_norm(config.norm, config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = make_norm(config.norm, config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: Tensor, rotation: Rotation, mask: Tensor | None, cache: KVCache, layer: int, span: Span
    ) -> Tensor:
        """Overwrites x. `mask` is bool, or added to the scores; broadcastable to [B, G, H/G * T, S], true where a query
        may look; None: everywhere.
        """
        heads, projection = self.self_attn(self.input_layernorm(x), rotation, mask, cache, layer, span)
        _add_projected(x, heads, projection)
        return _add_projected(x, self.mlp.hidden(self.post_attention_layernorm(x)), self.mlp.down_proj)


def _add_projected(x: Tensor, y: Tensor, projection: Tensor | nn.Module) -> Tensor:
    """x plus y behind a projection without bias, in x; one kernel where it is torch's, or its weight."""
    weight = projection if isinstance(projection, Tensor) else getattr(projection, "weight", None)
    if not isinstance(weight, Tensor):  # native code
        return x.add_(projection(y))  # type: ignore[operator]
    x.view(-1, x.shape[-1]).addmm_(y.view(-1, y.shape[-1]), weight.T)
    return x


class DecoderStack(nn.Module):
    """Decoder layers and the norm behind them, in torch: a `Stack`."""

    repeatable = False
    varlen = False  # until `prepare`

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm: Any = make_norm(config.norm, config.hidden_size, config.rms_norm_eps)
        self._masks: dict[tuple[int, int, torch.dtype, torch.device], Tensor | None] = {}  # of `extend`
        self._starts: dict[tuple[int, int], Starts] = {}  # by streams, and positions of the cache
        self._norms: CachedOnGpu[Tensor] = CachedOnGpu()  # of queries and keys of all layers
        self._calls: dict[tuple[int, torch.dtype, torch.device], OneCall] = {}  # of `together`, by their most positions

    @property
    def like(self) -> Tensor:
        weight: Tensor = self.norm.weight
        return weight

    @property
    def input_size(self) -> int:
        return self.config.hidden_size

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    def prepare(self, graphs: bool) -> None:
        """Set `varlen`, if graphs are used and attention over a stream's own length can be had on this device."""
        self.varlen = graphs and varlen_works(self.config, self.like)

    def new_cache(self, slots: int, max_length: int) -> KVCache:
        return KVCache(self.config, slots, max_length, self.like)

    def new_frame_cache(self, slots: int, max_length: int) -> KVCache:
        kind = PackedKVCache if self.like.is_cuda else KVCache
        return kind(self.config, slots, max_length, self.like)

    @torch.inference_mode()
    def prefill(self, cache: KVCache, slot: int, embeds: Tensor, offset: int = 0) -> Tensor:
        length = embeds.shape[0]
        end = offset + length
        mask = visible(length, offset, self.config, embeds.device)
        row, positions = slice(slot, slot + 1), slice(offset, end)
        rotations = self._rotations(cache, positions)
        return self._run(embeds.clone()[None], rotations, mask, cache, Span(row, positions, row, end))[0]

    @torch.inference_mode()
    def decode(
        self,
        cache: KVCache,
        slots: Sequence[int],
        positions: Sequence[int],
        embeds: Tensor,
        seen: Sequence[int] | None = None,
    ) -> Tensor:
        length = max(positions) + 1
        where = torch.tensor([slots, positions], device=embeds.device)  # one transfer for both
        mask = None
        if seen is None:
            mask = (torch.arange(length, device=embeds.device) <= where[1, :, None])[:, None, None]  # [B, 1, 1, S]
        neighbours = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        read = slice(slots[0], slots[0] + len(slots)) if neighbours else where[0]
        span = Span(where[0], where[1], read, length, seen)
        return self._run(embeds[:, None], self._rotations(cache, where[1, :, None]), mask, cache, span)

    @torch.inference_mode()
    def decode_first(self, cache: KVCache, positions: Tensor, embeds: Tensor, length: int) -> Tensor:
        batch = embeds.shape[0]
        if self.varlen:
            return self._decode_varlen(cache, positions, embeds, length)
        places = torch.arange(max(batch, length), device=embeds.device)
        mask = additive_mask(places[:length] <= positions[:, None], embeds.dtype)[:, None, None]
        span = Span(places[:batch], positions, slice(0, batch), length)
        return self._run(embeds[:, None], self._rotations(cache, positions[:, None]), mask, cache, span)

    def _decode_varlen(self, cache: KVCache, positions: Tensor, embeds: Tensor, length: int) -> Tensor:
        """`decode_first`, each stream over its own length."""
        batch, most = embeds.shape[0], cache.keys.shape[3]
        if (batch, most) not in self._starts:
            self._starts[batch, most] = Starts.of(batch, self.config, most, embeds.device)
        varlen = VarlenDecode.of(self._starts[batch, most], positions, length)
        span = Span(torch.arange(batch, device=embeds.device), positions, slice(0, batch), length, varlen=varlen)
        return self._run(embeds[:, None], self._rotations(cache, positions[:, None]), None, cache, span)

    @torch.inference_mode()
    def prefill_together(
        self,
        cache: KVCache,
        slots: Tensor,
        owner: Tensor,
        positions: Tensor,
        embeds: Tensor,
        length: int,
        begins: Tensor | None = None,
    ) -> Tensor:
        rotations = self._rotations(cache, positions[:, None])
        if self.varlen and begins is not None:
            varlen = VarlenPrefill.of(begins, slots, positions, cache.of_layer(0))
            span = Span(slots[owner], positions, slots, length, varlen=varlen)
            return self._run(embeds.clone()[:, None], rotations, None, cache, span)
        heads = self.config.num_attention_heads // self.config.num_key_value_heads
        places = torch.arange(max(len(owner), length), device=embeds.device)
        mask = additive_mask(places[:length] <= positions[:, None], embeds.dtype)
        mask = mask.repeat_interleave(heads, 0)  # [N * H/G, S]
        span = Span(slots[owner], positions, slots, length, owner=(owner, places[: len(owner)]))
        return self._run(embeds.clone()[:, None], rotations, mask, cache, span)

    def extend(self, cache: KVCache, x: Tensor, start: int) -> Tensor:
        batch, length, _ = x.shape
        end = start + length
        positions = slice(start, end)
        span = Span(slice(0, batch), positions, slice(0, batch), end)
        mask = self._visible(length, start, x) if length > 1 else None
        return self._run(x, self._rotations(cache, positions), mask, cache, span)

    @torch.inference_mode()
    def together(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run T positions of B sequences, all of which see each other, without a cache: for a stack without `causal`.

        Args:
            x: [B, T, C].
            mask: bool [B, T], true where a sequence has a position; what comes of the others means nothing. None: all
                have T.

        Returns:
            [B, T, C], the normed hidden states.
        """
        if self.config.causal:
            raise ValueError("only positions that see all others run together")
        length = x.shape[1]
        key = max(LEAST_TOGETHER, 1 << (length - 1).bit_length()), x.dtype, x.device
        if key not in self._calls:
            self._calls[key] = OneCall(self.config, key[0], self.like)
        cache, whole = self._calls[key], slice(0, length)
        seen = None if mask is None else additive_mask(mask, x.dtype)[:, None, None]  # [B, 1, 1, T]
        x = x.clone(memory_format=torch.contiguous_format)
        span = Span(whole, whole, whole, length)
        hidden: Tensor = self.norm(self._layers(x, self._rotations(cache, whole), seen, cache, span))
        return hidden

    def _visible(self, length: int, start: int, like: Tensor) -> Tensor | None:
        """The mask `visible`, made once and additive, of the dtype and on the device of `like`."""
        key = length, start, like.dtype, like.device
        if key not in self._masks:
            seen = visible(length, start, self.config, like.device)
            self._masks[key] = None if seen is None else additive_mask(seen, like.dtype)
        return self._masks[key]

    def _rotations(self, cache: KVCache, positions: Tensor | slice) -> list[Rotation]:
        """The rotation of queries and keys at these positions, [B, T] or T, of each layer."""
        if not self.like.is_cuda:
            return [(cache.cos[positions], cache.sin[positions])] * len(self.layers)
        if not self.config.qk_norm:
            return [(for_all_heads(cache.rotations[positions]),)] * len(self.layers)
        if isinstance(cache, PackedKVCache):  # it is short: the tables of all its positions are kept
            folded = cache.folded.get(self.like, lambda: fold_norms(cache.rotations, self._norm_tables()))[:, positions]
        else:
            folded = fold_norms(cache.rotations[positions], self._norm_tables())
        return [(table,) for table in folded.unbind()]

    def _norm_tables(self) -> Tensor:
        """`norm_tables` of all layers, computed once."""
        layers = [layer.self_attn for layer in self.layers if isinstance(layer, DecoderLayer)]

        def compute() -> Tensor:
            queries, keys = ([getattr(each, name).weight for each in layers] for name in ("q_norm", "k_norm"))
            return norm_tables(self.config, queries, keys)

        return self._norms.get(self.like, compute)

    def _run(self, x: Tensor, rotations: list[Rotation], mask: Tensor | None, cache: KVCache, span: Span) -> Tensor:
        """x [B, T, C] -> hidden state of the last position [B, C]. Overwrites x."""
        hidden: Tensor = self.norm(self._layers(x, rotations, mask, cache, span)[:, -1])
        return hidden

    def _layers(self, x: Tensor, rotations: list[Rotation], mask: Tensor | None, cache: KVCache, span: Span) -> Tensor:
        """x [B, T, C] -> what the last norm gets, in x."""
        for index, (layer, rotation) in enumerate(zip(self.layers, rotations, strict=True)):
            x = layer(x, rotation, mask, cache, index, span)
        return x
