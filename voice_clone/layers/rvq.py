"""Residual vector quantisation, split into a semantic and an acoustic part (Defossez et al. 2024, Mimi).

A checkpoint stores a codebook as the running sum of the vectors that were assigned to each code, and their count. The
vector of a code is the quotient. Encoder and decoder store their codebooks under different names, and the modules below
have these names, so that an official checkpoint loads as it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.layers.graphs import CachedOnGpu


class CodeVectors:
    """Sums of the projected vectors of codes, on a GPU: one look-up in a cached table of all codebooks, and one sum.

    Looked up and projected codebook by codebook, K codebooks would take about 2 K kernels.
    """

    def __init__(self) -> None:
        self._table: CachedOnGpu[tuple[Tensor, Tensor]] = CachedOnGpu()

    def __call__(self, codes: Tensor, weight: Tensor, vectors: Callable[[], Sequence[Tensor]]) -> Tensor:
        """Codes int64 [B, K, T] -> [B, T, C].

        Args:
            weight: one of those that the vectors are computed from; no table is cached while it requires grad.
            vectors: computes [size, C] of each of the K codebooks.
        """
        table, first = self._table.get(weight, lambda: _joined(vectors()))
        return F.embedding(codes + first, table).sum(1)


def _joined(vectors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The table of all vectors, and the first row of each codebook, [K, 1]."""
    firsts = [0, *accumulate(len(each) for each in vectors[:-1])]
    return torch.cat([*vectors]), torch.tensor(firsts, device=vectors[0].device)[:, None]


_MIN_USAGE = 1e-5  # avoids a division by zero for a code that was never used


class EncoderCodebook(nn.Module):
    """Finds the nearest code of a vector."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.embed_sum = nn.Parameter(torch.zeros(size, dim))
        self.cluster_usage = nn.Parameter(torch.ones(size))

    @property
    def vectors(self) -> Tensor:
        """The codes' vectors [size, D]."""
        return self.embed_sum / self.cluster_usage.clamp(min=_MIN_USAGE)[:, None]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [N, D] -> (codes int64 [N], their vectors [N, D])."""
        vectors = self.vectors
        # The function and the shapes are those of Mimi: another rounding of a distance could choose another code.
        codes = torch.cdist(x[None].float(), vectors[None].float())[0].argmin(dim=-1)
        return codes, F.embedding(codes, vectors)


class ResidualEncoder(nn.Module):
    """Each codebook encodes the residual that the codebooks before it leave."""

    def __init__(self, num_quantizers: int, size: int, dim: int, input_dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.input_proj = nn.Conv1d(input_dim, dim, 1, bias=False) if input_dim != dim else nn.Identity()
        self.layers = nn.ModuleList(
            nn.Sequential(OrderedDict(codebook=EncoderCodebook(size, dim))) for _ in range(num_quantizers)
        )

    @property
    def codebooks(self) -> list[EncoderCodebook]:
        return [module for module in self.modules() if isinstance(module, EncoderCodebook)]

    def encode(self, x: Tensor) -> Tensor:
        """x [B, C, T] -> codes int64 [B, K, T]."""
        residual = self.input_proj(x).transpose(1, 2)  # [B, T, D]
        batch, frames, _ = residual.shape
        residual = residual.flatten(0, 1)
        codes = []
        for layer in self.layers:
            chosen, vectors = layer(residual)
            residual = residual - vectors
            codes.append(chosen.view(batch, frames))
        return torch.stack(codes, dim=1)


class SplitResidualEncoder(nn.Module):
    """The semantic and the acoustic codebooks encode the same input independently."""

    def __init__(self, num_quantizers: int, num_semantic: int, size: int, dim: int, input_dim: int) -> None:
        super().__init__()
        self.semantic_residual_vector_quantizer = ResidualEncoder(num_semantic, size, dim, input_dim)
        self.acoustic_residual_vector_quantizer = ResidualEncoder(num_quantizers - num_semantic, size, dim, input_dim)

    def encode(self, x: Tensor) -> Tensor:
        """x [B, C, T] -> codes int64 [B, K, T], the semantic ones first."""
        semantic = self.semantic_residual_vector_quantizer.encode(x)
        return torch.cat((semantic, self.acoustic_residual_vector_quantizer.encode(x)), dim=1)


class DecoderCodebook(nn.Module):
    """Looks up the vectors of codes."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.embedding_sum = nn.Parameter(torch.zeros(size, dim))
        self.cluster_usage = nn.Parameter(torch.ones(size))

    def forward(self, codes: Tensor) -> Tensor:
        """codes [B, T] -> vectors [B, T, D]."""
        # Only these codes' sums are divided.
        return F.embedding(codes, self.embedding_sum) / self.cluster_usage[codes].clamp(min=_MIN_USAGE)[..., None]

    @property
    def vectors(self) -> Tensor:
        """Those of all codes [size, D]."""
        return self.embedding_sum / self.cluster_usage.clamp(min=_MIN_USAGE)[:, None]


class ResidualStack(nn.Module):
    """The codebooks of one residual quantiser, under their official names."""

    def __init__(self, num_quantizers: int, size: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(OrderedDict(_codebook=DecoderCodebook(size, dim))) for _ in range(num_quantizers)
        )


class ResidualDecoder(nn.Module):
    """Decodes codes to the projected sum of their vectors."""

    def __init__(self, num_quantizers: int, size: int, dim: int, output_dim: int) -> None:
        super().__init__()
        self.vq = ResidualStack(num_quantizers, size, dim)
        self.output_proj = nn.Conv1d(dim, output_dim, 1, bias=False)

    def decode(self, codes: Tensor) -> Tensor:
        """codes [B, K, T] -> [B, C, T]."""
        vectors = [layer(codes[:, index]) for index, layer in enumerate(self.vq.layers)]
        total = vectors[0]
        for vector in vectors[1:]:
            total = total + vector
        out: Tensor = self.output_proj(total.transpose(1, 2))
        return out

    @property
    def vectors(self) -> list[Tensor]:
        """What the codes of each codebook stand for, projected: [size, C] each."""
        books = [book for book in self.vq.modules() if isinstance(book, DecoderCodebook)]
        return [F.linear(book.vectors, self.output_proj.weight[..., 0]) for book in books]


class SplitResidualDecoder(nn.Module):
    """Decodes the first `num_semantic` codebooks and the others, each part with its own projection, and adds both."""

    def __init__(self, num_quantizers: int, num_semantic: int, size: int, dim: int, output_dim: int) -> None:
        super().__init__()
        self.num_semantic = num_semantic
        self.rvq_first = ResidualDecoder(num_semantic, size, dim, output_dim)
        self.rvq_rest = ResidualDecoder(num_quantizers - num_semantic, size, dim, output_dim)
        self._vectors = CodeVectors()

    def decode(self, codes: Tensor) -> Tensor:
        """codes int64 [B, K, T] -> [B, C, T]."""
        if codes.is_cuda:
            first, rest = self.rvq_first, self.rvq_rest
            total = self._vectors(codes, first.output_proj.weight, lambda: [*first.vectors, *rest.vectors])
            return total.transpose(1, 2)
        semantic, acoustic = codes[:, : self.num_semantic], codes[:, self.num_semantic :]
        return self.rvq_first.decode(semantic) + self.rvq_rest.decode(acoustic)
