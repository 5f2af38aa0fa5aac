"""What the codec's encoder and decoder have in common: the sizes of their transformers, and vector quantisation.

Source: fish-speech 0.1.0, `modded_dac.py` and `rvq.py`, and descript-audio-codec 1.0.0, `quantize.py`. Module names are
those of the official tensors as far as `checkpoint.py` does not translate them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.fish_speech.config import HEAD_DIM, NORM_EPS, QUANTIZER_WINDOW, ROPE_THETA, CodecConfig
from voice_clone.layers.fused import empty_table
from voice_clone.layers.window_transformer import WindowConfig


def transformer_config(size: int, intermediate: int, layers: int, window: int) -> WindowConfig:
    """A transformer of the codec; its rotary tables are rounded to bf16."""
    return WindowConfig(
        hidden_size=size,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=size // HEAD_DIM,
        num_key_value_heads=size // HEAD_DIM,
        head_dim=HEAD_DIM,
        sliding_window=window,
        rms_norm_eps=NORM_EPS,
        rope_theta=ROPE_THETA,
        rope_dtype=torch.bfloat16,
    )


def quantizer_transformer(config: CodecConfig) -> WindowConfig:
    """Of those before and behind the quantizer."""
    return transformer_config(
        config.latent_dim, config.quantizer_intermediate, config.quantizer_layers, QUANTIZER_WINDOW
    )


class Codebook(nn.Module):
    """The vectors of a codebook's codes, and the projection from them. [.., D] and [B, C, T]."""

    def __init__(self, latent: int, size: int, dim: int) -> None:
        super().__init__()
        self.out_proj = nn.Conv1d(dim, latent, 1)
        self.codebook = empty_table(size, dim)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, T] -> [B, C, T]."""
        out: Tensor = self.out_proj(self.codebook(codes).transpose(1, 2))
        return out

    @property
    def vectors(self) -> Tensor:
        """The projected vectors of all codes, [size, C]."""
        return F.linear(self.codebook.weight, self.out_proj.weight[..., 0], self.out_proj.bias)


class Quantizer(Codebook):
    """Also finds the nearest code, by the angle between vectors (Yu et al. 2022)."""

    def __init__(self, latent: int, size: int, dim: int) -> None:
        super().__init__(latent, size, dim)
        self.in_proj = nn.Conv1d(latent, dim, 1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, C, T] -> codes int64 [B, T] and their projected vectors, [B, C, T]."""
        rows = F.normalize(self.in_proj(x).transpose(1, 2).flatten(0, 1))  # [B * T, D]
        vectors = F.normalize(self.codebook.weight)
        # The distance in the official form: another rounding could choose another code.
        distances = rows.pow(2).sum(1, keepdim=True) - 2 * rows @ vectors.T + vectors.pow(2).sum(1)
        codes = (-distances).argmax(dim=1).view(x.shape[0], -1)
        return codes, self.decode(codes)


class Codebooks(nn.Module):
    """The codebooks of a residual quantizer."""

    def __init__(self, kind: type[Codebook], count: int, latent: int, size: int, dim: int) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(kind(latent, size, dim) for _ in range(count))


def semantic_codebooks(config: CodecConfig, kind: type[Codebook]) -> Codebooks:
    """The first codebook."""
    return Codebooks(kind, 1, config.latent_dim, config.semantic_codes, config.codebook_dim)


def residual_codebooks(config: CodecConfig, kind: type[Codebook]) -> Codebooks:
    """The others."""
    return Codebooks(kind, config.residual_books, config.latent_dim, config.residual_codes, config.codebook_dim)
