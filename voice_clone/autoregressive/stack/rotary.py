"""Rotary position embedding (Su et al. 2021) in the kinds that decoder stacks have.

The half-split kind is that of `voice_clone.layers.attention`: dimension i turns together with i + D/2. In the
interleaved kind dimension 2i turns together with 2i + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.layers.attention import apply_rotary, rotary_cos_sin


def rotary_tables(config: StackConfig, positions: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of all positions, [positions, D], in the layout of the kind, of the dtype and device of `like`."""
    places = torch.arange(positions, device=like.device)
    cos, sin = rotary_cos_sin(places, config.head_dim, config.rope_theta, config.rope_dtype)
    if config.rope == "interleaved":
        half = config.head_dim // 2
        cos, sin = cos[:, :half].repeat_interleave(2, dim=1), sin[:, half:].repeat_interleave(2, dim=1)
        sin[:, ::2].neg_()
    return cos.to(like.dtype), sin.to(like.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, config: StackConfig) -> Tensor:
    """Turn queries or keys x [B, H, T, D] by the tables [B, T, D] or [T, D]; the result has x's dtype."""
    if config.rope == "half":
        return apply_rotary(x, cos, sin)
    cos, sin = cos.unsqueeze(-3).to(x.dtype), sin.unsqueeze(-3).to(x.dtype)
    partners = x.reshape(*x.shape[:-1], -1, 2).flip(-1).reshape(x.shape)  # dimension 2i + 1 at 2i, and 2i at 2i + 1
    return torch.addcmul(x * cos, partners, sin)
