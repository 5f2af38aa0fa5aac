"""What codes of several codebooks add up to, on a GPU: one look-up and one sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from voice_clone.layers.kept import KeptOnGpu


class CodeVectors:
    """The projected vectors of all codes of all codebooks, in one table that is kept.

    Looked up and projected codebook by codebook, K codebooks take some 2 K kernels.
    """

    def __init__(self) -> None:
        self._kept: KeptOnGpu[tuple[Tensor, Tensor]] = KeptOnGpu()

    def __call__(self, codes: Tensor, weight: Tensor, vectors: Callable[[], Sequence[Tensor]]) -> Tensor:
        """Codes int64 [B, K, T] -> [B, T, C].

        Args:
            weight: one of those that decide the vectors: while it learns, no table is kept.
            vectors: computes [size, C] of each of the K codebooks.
        """
        table, first = self._kept.get(weight, lambda: _joined(vectors()))
        return F.embedding(codes + first, table).sum(1)


def _joined(vectors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The table of all vectors, and the first row of each codebook, [K, 1]."""
    firsts = [0, *accumulate(len(each) for each in vectors[:-1])]
    return torch.cat([*vectors]), torch.tensor(firsts, device=vectors[0].device)[:, None]
