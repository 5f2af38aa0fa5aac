"""The Qwen3 decoder layer that the talker and the code predictor share, and its preallocated key-value cache.

Qwen3 technical report (Yang et al. 2025): pre-norm, grouped-query attention with RMS-normed queries and keys,
SwiGLU. Attribute names equal the official tensor names below `...layers.N.`.

Shapes: B streams, T new positions, S positions read, C hidden size, H query heads, G key-value heads, D head dim.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.families.qwen3_tts.config import CodePredictorConfig, TalkerConfig
from voice_clone.layers.attention import GatedMLP, RMSNorm, apply_rotary, normalise, rotary_cos_sin
from voice_clone.layers.fused import fused_linear


@dataclass(frozen=True)
class Span:
    """Where new keys and values go in the cache, and how much of it is read back.

    Attributes:
        slots: the B slots written; a slice, or int64 [B].
        positions: with a slice of slots a slice of T positions; with int64 slots int64 [B], one position each.
        read: the same B slots to read; a slice wherever they are neighbours, because that copies nothing.
        length: S; positions 0..S-1 are read.
        each: with T = 1, how many positions each of the B streams sees; it then attends by itself, to these alone,
            and its result cannot depend on how long the others are. None: all attend together, under a mask.
    """

    slots: Tensor | slice
    positions: Tensor | slice
    read: Tensor | slice
    length: int
    each: Sequence[int] | None = None


class KVCache:
    """Keys and values of all layers: two tensors [layers, slots, G, max_length, D], zero at first.

    On a CPU they take memory as they are written to: few streams are as long as a slot. Also the rotary tables of all
    positions, `cos` and `sin` [max_length, D].
    """

    def __init__(self, config: TalkerConfig | CodePredictorConfig, slots: int, max_length: int, like: Tensor) -> None:
        """`like` gives dtype and device."""
        shape = (config.num_hidden_layers, slots, config.num_key_value_heads, max_length, config.head_dim)
        (self.keys, key_pages), (self.values, value_pages) = _zeros(shape, like), _zeros(shape, like)
        self._pages = key_pages, value_pages
        positions = torch.arange(max_length, device=like.device)
        cos, sin = rotary_cos_sin(positions, config.head_dim, config.rope_theta)
        self.cos, self.sin = cos.to(like.dtype), sin.to(like.dtype)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def update(self, layer: int, k: Tensor, v: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """Store k and v [B, G, T, D]; return all keys and values read, [B, G, S, D]."""
        read = []
        for cache, new in ((self.keys[layer], k), (self.values[layer], v)):
            if isinstance(span.positions, slice):
                cache[span.slots, :, span.positions] = new
            else:
                cache[span.slots, :, span.positions] = new[:, :, 0]  # pairs (slot, position) -> [B, G, D]
            read.append(cache[span.read, :, : span.length])
        return read[0], read[1]

    def wipe(self, slot: int, length: int) -> None:
        """Zero the first `length` positions of a slot.

        Needed only after non-finite values: a masked NaN is still a NaN in the sum.
        """
        self.keys[:, slot, :, :length] = 0
        self.values[:, slot, :, :length] = 0

    def clear(self) -> None:
        """Zero all; on a CPU the memory goes back to the system."""
        for tensor, pages in zip((self.keys, self.values), self._pages, strict=True):
            if pages is None:
                tensor.zero_()
            else:
                pages.madvise(mmap.MADV_DONTNEED)


def _zeros(shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, mmap.mmap | None]:
    """Zeros of the dtype and on the device of `like`; on a CPU pages that do not exist before they are written to."""
    if like.device.type != "cpu":
        return torch.zeros(shape, dtype=like.dtype, device=like.device), None
    size = math.prod(shape) * like.element_size()
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape), pages


class Attention(nn.Module):
    """Causal grouped-query attention with QK-norm and RoPE over the cache."""

    def __init__(self, config: TalkerConfig | CodePredictorConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.head_dim, self.eps = config.head_dim, eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        parts = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        self.qkv_proj = fused_linear(self, "qkv_proj", size, parts)
        self.o_proj = nn.Linear(queries, size, bias=False)
        self.q_norm = RMSNorm(self.head_dim, eps)
        self.k_norm = RMSNorm(self.head_dim, eps)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: KVCache, layer: int, span: Span
    ) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv_proj(x).view(batch, length, -1, self.head_dim)
        turned = self.heads + self.kv_heads
        qk = normalise(qkv[:, :, :turned], self.eps)  # [B, T, H + G, D]
        qk[:, :, : self.heads].mul_(self.q_norm.weight)
        qk[:, :, self.heads :].mul_(self.k_norm.weight)
        qk = apply_rotary(qk.transpose(1, 2), cos, sin)
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
                    F.scaled_dot_product_attention(q[row], k[row, :, :seen], v[row, :, :seen])
                    for row, seen in zip(rows, span.each, strict=True)
                ]
            )
        out = out.reshape(batch, self.heads, length, self.head_dim).transpose(1, 2).flatten(2)
        projected: Tensor = self.o_proj(out)
        return projected


class DecoderLayer(nn.Module):
    """[B, T, C] -> [B, T, C]."""

    def __init__(self, config: TalkerConfig | CodePredictorConfig) -> None:
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


def causal_mask(length: int, offset: int, config: TalkerConfig | CodePredictorConfig, device: torch.device) -> Tensor:
    """Mask of `length` new positions after `offset` known ones, for each of the H/G heads: bool [H/G * T, S]."""
    mask = torch.ones(length, offset + length, dtype=torch.bool, device=device).tril(offset)
    return mask.repeat(config.num_attention_heads // config.num_key_value_heads, 1)
