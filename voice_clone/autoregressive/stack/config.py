"""What the decoder stacks of different families do differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch


@dataclass(frozen=True)
class StackConfig:
    """A stack of pre-norm decoder layers with RMSNorm, grouped-query attention, RoPE and SwiGLU.

    Attributes:
        qk_norm: queries and keys have an RMSNorm each, over a head's dimensions.
        qkv_bias: the projections to queries, keys and values have biases.
        rope: which dimensions turn together: i and i + D/2 (`half`), or 2i and 2i + 1 (`interleaved`).
        rope_dtype: to which the rotary tables are rounded before they get the dtype of the weights.
        window: a position sees itself and the `window - 1` positions before it; None: all before it.
        causal: a position sees no later ones. Without it, all positions that are read in one call see each other.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    qk_norm: bool = True
    qkv_bias: bool = False
    rope: Literal["half", "interleaved"] = "half"
    rope_dtype: torch.dtype = torch.float32
    window: int | None = None
    causal: bool = True

    @classmethod
    def of(cls, sizes: Any, **options: Any) -> StackConfig:
        """The sizes of a family's configuration, whose attributes have the same names, and these options."""
        names = list(cls.__dataclass_fields__)[:8]
        return cls(**{name: getattr(sizes, name) for name in names}, **options)
