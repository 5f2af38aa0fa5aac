"""Transformer blocks that families share: RMSNorm, rotary embedding, attention, gated MLP, layer scale.

Shapes: B streams, T new positions, S key positions, H query heads, G key-value heads, D head dimension.
Every module can be built on the meta device and filled by `load_state_dict(assign=True)`: a module holds nothing but
parameters, and rotary tables are computed from positions when they are needed.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone import position_encoding
from voice_clone.layers.fused import fused_linear
from voice_clone.layers.graphs import to_device
from voice_clone.layers.streaming import Lengths, StreamingModule


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension (Zhang & Sennrich 2019).

    It normalises in fp32 and converts to the input's dtype before it applies the weight. This order decides the
    rounding in half precision, and it is that of the official code.
    """

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:  # one kernel instead of four; it rounds once, after the weight
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return normalise(x, self.eps).mul_(self.weight)


def normalise(x: Tensor, eps: float) -> Tensor:
    """x divided by the root mean square of its last dimension, computed in fp32; a new tensor of x's dtype."""
    if x.is_cuda:  # the CUDA kernel computes in fp32 by itself
        return F.rms_norm(x, x.shape[-1:], None, eps)
    return F.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype)


def rotary_frequencies(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """As of voice_clone/position_encoding.py, on `device`. The last bits of a GPU's own powers differ, and a position
    multiplies that error.
    """
    frequencies = torch.from_numpy(position_encoding.rotary_frequencies(head_dim, theta))
    return frequencies if device.type == "cpu" else to_device(frequencies, device)


def rotary_cos_sin(
    positions: Tensor,
    head_dim: int,
    theta: float,
    dtype: torch.dtype = torch.float32,
    frequencies: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotary tables in the half-split layout, computed where the positions are.

    Args:
        positions: integers [..., T], absolute.
        head_dim: D, even.
        theta: base of the wavelengths.
        dtype: to which the numbers are rounded. A lower precision than fp32 rounds those of `torch.polar`, as the
            official code of such models does; its cosine differs from `cos` in the last bit now and then.
        frequencies: `rotary_frequencies` of D and theta, if they are cached: a CUDA graph must not fetch them from the
            host.

    Returns:
        cos and sin for `apply_rotary`, fp32 [..., T, D], on the device of `positions`; sin's first half is negated.
    """
    if frequencies is None:
        frequencies = rotary_frequencies(head_dim, theta, positions.device)
    angles = positions.float()[..., None] * frequencies  # [..., T, D/2]
    if dtype == torch.float32:
        cos, sin = angles.cos(), angles.sin()
    else:
        rotation = torch.polar(torch.ones_like(angles), angles)
        cos, sin = rotation.real.to(dtype).float(), rotation.imag.to(dtype).float()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys x [B, H, T, D] by the tables [B, T, D] or [T, D]; the result has x's dtype."""
    cos, sin = cos.unsqueeze(-3).to(x.dtype), sin.unsqueeze(-3).to(x.dtype)  # [.., 1, T, D]
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """[B, T, H * D] -> [B, H, T, D]."""
    return x.view(*x.shape[:-1], -1, head_dim).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """Grouped-query scaled-dot-product attention (Ainslie et al. 2023).

    Args:
        q: [B, H, T, D].
        k, v: [B, G, S, D], H a multiple of G.
        mask: bool, broadcastable to [B, H, T, S], true where a query attends to a key, or one that is added to the
            scores; None: everywhere.
        is_causal: instead of a mask, if T == S and position t attends to 0..t.

    Returns:
        [B, T, H * D], heads joined, ready for the output projection.
    """
    grouped = bool(q.shape[1] != k.shape[1])  # bool: while a graph is traced, sizes are tensors
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=grouped)
    return out.transpose(1, 2).flatten(2)


def sliding_window_mask(position: Tensor, length: int, window: int) -> Tensor:
    """The attention mask of `length` new positions after a rolling cache of the last `window - 1` positions.

    Args:
        position: int [B], the absolute position of each stream's first new frame. Cache slots of positions below zero
            were never written and are masked.

    Returns:
        bool [B, 1, length, window - 1 + length]: a query attends to itself and to the `window - 1` positions before
        it.
    """
    past = window - 1
    query = torch.arange(length, device=position.device)[:, None]
    key = torch.arange(-past, length, device=position.device)[None, :]  # relative to `position`
    in_window = (key <= query) & (key > query - window)  # [T, S]
    exists = key + position[:, None] >= 0  # [B, S]
    return (in_window & exists[:, None, :]).unsqueeze(1)


def additive_mask(seen: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """A bool mask [..., S], true where a query attends to a key, as a mask that is added to the scores.

    On a GPU the attention of every layer would convert a bool mask, and would copy a mask whose rows do not begin at
    multiples of 8 numbers. So there the rows are views of padded ones.

    Args:
        bias: added to the scores besides, broadcast against `seen`.
    """
    zeros = torch.zeros_like(seen, dtype=dtype) if bias is None else bias.to(dtype)
    added = zeros.masked_fill(~seen, -torch.inf)
    if seen.is_cuda and seen.shape[-1] % 8:
        return F.pad(added, (0, -seen.shape[-1] % 8))[..., : seen.shape[-1]]
    return added


def alibi_slopes(heads: int) -> Tensor:
    """As of voice_clone/position_encoding.py, as a tensor."""
    return torch.from_numpy(position_encoding.alibi_slopes(heads))


def alibi_bias(slopes: Tensor, length: int, window: int) -> Tensor:
    """What ALiBi adds to the scores under a `sliding_window_mask` of this length and window: fp32 [H, T, S].

    Args:
        slopes: fp32 [H], of `alibi_slopes`.
    """
    query = torch.arange(length, device=slopes.device)[:, None]
    key = torch.arange(1 - window, length, device=slopes.device)[None, :]
    return slopes[:, None, None] * (key - query)


class SlidingWindowAttention(StreamingModule):
    """Causal self-attention over a window, exact across chunks by a rolling key-value cache.

    The streaming state [B, 2, G, window - 1, D] holds keys, normed and rotated, then values, the oldest position
    first.

    Args:
        qk_norm_eps: queries and keys have an RMSNorm each with this epsilon, over all heads together; None: they have
            none.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_key_value_heads: int,
        head_dim: int,
        window: int,
        bias: bool,
        qk_norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.heads, self.kv_heads = num_heads, num_key_value_heads
        self.state_shape = (2, num_key_value_heads, window - 1, head_dim)
        queries, keys = num_heads * head_dim, num_key_value_heads * head_dim
        parts = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        self.qkv_proj = fused_linear(self, "qkv_proj", hidden_size, parts, bias=bias)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=bias)
        self.qk_norm = qk_norm_eps is not None
        if qk_norm_eps is not None:
            self.q_norm, self.k_norm = RMSNorm(queries, qk_norm_eps), RMSNorm(keys, qk_norm_eps)

    def new_state(self, batch: int) -> Tensor:
        return self.o_proj.weight.new_zeros(batch, *self.state_shape)

    def stream(self, x: Tensor, state: Tensor, *context: Any, valid: Lengths | None = None) -> tuple[Tensor, Tensor]:
        """A chunk [B, T, C] -> ([B, T, C], the next state). `context`: rotary tables cos and sin, if any; mask."""
        *rotation, mask = context
        qkv = self.qkv_proj(x)
        if self.qk_norm:
            queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
            q, k, v = torch.split(qkv, [queries, keys, keys], dim=-1)
            qkv = torch.cat((self.q_norm(q), self.k_norm(k), v), dim=-1)
        qkv = split_heads(qkv, self.head_dim)
        qk, v = qkv[:, : self.heads + self.kv_heads], qkv[:, self.heads + self.kv_heads :]
        if rotation:
            qk = apply_rotary(qk, *rotation)
        q, k = qk[:, : self.heads], qk[:, self.heads :]
        seen = torch.cat((state, torch.stack((k, v), dim=1)), dim=3)  # [B, 2, G, window - 1 + T, D]
        out = self.o_proj(attend(q, seen[:, 0], seen[:, 1], mask))
        if valid is not None:
            return out, valid.following(seen, state.shape[3], 3)
        return out, seen[:, :, :, x.shape[1] :].clone()  # a view would keep the whole chunk alive


class WholeAttention(nn.Module):
    """Causal self-attention over a whole signal, with rotary embedding. Names are those of `SlidingWindowAttention`."""

    def __init__(self, hidden_size: int, num_heads: int, num_key_value_heads: int, head_dim: int, bias: bool) -> None:
        super().__init__()
        self.head_dim, self.heads, self.kv_heads = head_dim, num_heads, num_key_value_heads
        queries, keys = num_heads * head_dim, num_key_value_heads * head_dim
        parts = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        self.qkv_proj = fused_linear(self, "qkv_proj", hidden_size, parts, bias=bias)
        self.o_proj = nn.Linear(queries, hidden_size, bias=bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        qkv = split_heads(self.qkv_proj(x), self.head_dim)
        q, k, v = torch.split(qkv, [self.heads, self.kv_heads, self.kv_heads], dim=1)
        out: Tensor = self.o_proj(attend(apply_rotary(q, cos, sin), apply_rotary(k, cos, sin), v, is_causal=True))
        return out


class GatedMLP(nn.Module):
    """SwiGLU feed-forward (Shazeer 2020): down(silu(gate(x)) * up(x)), without biases."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.inner = intermediate_size
        parts = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self.gate_up_proj = fused_linear(self, "gate_up_proj", hidden_size, parts)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.hidden(x))
        return out

    def hidden(self, x: Tensor) -> Tensor:
        """The input of the down projection."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        hidden: Tensor = F.silu(gate) * up
        return hidden


class MLP(nn.Module):
    """A feed-forward part without a gate: fc2(gelu(fc1(x))), without biases.

    Args:
        activation: the exact GELU, or its form by the hyperbolic tangent.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, activation: Literal["gelu", "gelu_tanh"]) -> None:
        super().__init__()
        self.activation = activation
        self.fc1 = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.fc2 = nn.Linear(intermediate_size, hidden_size, bias=False)

    @property
    def down_proj(self) -> nn.Module:
        return self.fc2

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.hidden(x))
        return out

    def hidden(self, x: Tensor) -> Tensor:
        return F.gelu(self.fc1(x), approximate="tanh" if self.activation == "gelu_tanh" else "none")


Norm = Literal["rms", "layer"]
MLPKind = Literal["gated", "gelu", "gelu_tanh"]


def make_norm(kind: Norm, size: int, eps: float) -> Any:
    """A norm over the last dimension: an `RMSNorm`, or a layer norm with a bias."""
    return RMSNorm(size, eps) if kind == "rms" else nn.LayerNorm(size, eps)


def make_mlp(kind: MLPKind, hidden_size: int, intermediate_size: int) -> Any:
    """A feed-forward part of this kind: a `GatedMLP` or an `MLP`."""
    if kind == "gated":
        return GatedMLP(hidden_size, intermediate_size)
    return MLP(hidden_size, intermediate_size, kind)


class LayerScale(nn.Module):
    """A learned scale for each channel of a residual branch (Touvron et al. 2021)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x

    def added(self, x: Tensor, branch: Tensor) -> Tensor:
        """x plus the scaled branch, in one kernel."""
        return torch.addcmul(x, branch, self.scale)
