"""The codec's residual quantizer: each codebook takes the vector nearest to what those before it have left.

Shapes: B signals, K codebooks, T frames, latents of size L, vectors of size D.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.omnivoice.codec_config import CodecConfig
from voice_clone.families.omnivoice.config import CODEBOOKS, CODES


class Codebook(nn.Module):
    """A vector for each code."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.empty(CODES, dim))


class VectorQuantizer(nn.Module):
    """One codebook, in a space of its own.

    Args:
        encodes: whether latents are to be quantized, too; else it only gives the latents of codes.
    """

    def __init__(self, config: CodecConfig, encodes: bool) -> None:
        super().__init__()
        self.codebook = Codebook(config.codebook_dim)
        if encodes:
            self.project_in = nn.Linear(config.latent, config.codebook_dim)
        self.project_out = nn.Linear(config.codebook_dim, config.latent)

    def encode(self, latents: Tensor) -> Tensor:
        """[B, T, L] -> codes int64 [B, T]: the nearest vectors by Euclidean distance, the first of equal ones."""
        rows, table = self.project_in(latents), self.codebook.embed
        near = 2 * rows @ table.t() - rows.square().sum(-1, keepdim=True) - table.square().sum(-1)
        nearest: Tensor = near.argmax(dim=-1)
        return nearest

    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, T] -> [B, T, L]."""
        latents: Tensor = self.project_out(F.embedding(codes, self.codebook.embed))
        return latents


class Quantizer(nn.Module):
    """All codebooks; `encodes` as of `VectorQuantizer`."""

    def __init__(self, config: CodecConfig, encodes: bool) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(VectorQuantizer(config, encodes) for _ in range(CODEBOOKS))

    def encode(self, latents: Tensor) -> Tensor:
        """[B, T, L] -> codes int64 [B, T, K]."""
        codes = []
        for quantizer in self.quantizers:
            assert isinstance(quantizer, VectorQuantizer)
            codes.append(quantizer.encode(latents))
            latents = latents - quantizer.decode(codes[-1])
        return torch.stack(codes, dim=-1)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, K, T] -> [B, T, L]."""
        latents = torch.zeros((), device=codes.device)
        for quantizer, own in zip(self.quantizers, codes.unbind(1), strict=True):
            assert isinstance(quantizer, VectorQuantizer)
            latents = latents + quantizer.decode(own)
        return latents
