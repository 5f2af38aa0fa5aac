"""A code predictor in torch: a small transformer that completes frames codebook by codebook.

Shapes: B frames, K codebooks, C the predictor's hidden size, H the talker's hidden size, V vocabulary of a codebook.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from voice_clone.autoregressive.samplers import Draw
from voice_clone.autoregressive.sampling import CodeDraws
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.stack.protocol import PredictorStack

Choose = Callable[[Tensor, int], Tensor]
"""(logits [B, V], codebook index) -> codes int64 [B]."""


class PredictorParts(Protocol):
    """A code predictor by its parts: a small transformer over K positions."""

    @property
    def stack(self) -> PredictorStack:
        """Its decoder layers."""

    @property
    def codebooks(self) -> int:
        """K."""

    def project(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., C]."""

    def logits(self, hidden: Tensor, book: int) -> Tensor:
        """[B, C] -> [B, V] of codebook `book`, 1..K-1."""

    def embed(self, codes: Tensor, book: int = 1) -> Tensor:
        """Codes of codebook `book` and the following ones, int64 [B, N] -> [B, N, H]."""


@torch.inference_mode()
def complete_by_steps(
    parts: PredictorParts, cache: KVCache, hidden: Tensor, code0: Tensor, embed0: Tensor, choose: Choose
) -> Tensor:
    """Complete one frame of each of B streams, codebook by codebook.

    Args:
        cache: of `frame_cache(parts, slots)`, slots >= B.
        hidden: [B, H], the talker's hidden state from which code 0 was chosen.
        code0: int64 [B].
        embed0: [B, H], code 0 embedded by the talker.
        choose: picks each stream's code from its logits; called with codebook index 1, 2, ..., K - 1.

    Returns:
        int64 [B, K], code 0 first.
    """
    codes = [code0]
    x = torch.stack([hidden, embed0], dim=1)  # [B, 2, H]
    start = 0
    for book in range(1, parts.codebooks):
        out = parts.stack.extend(cache, parts.project(x), start)
        codes.append(choose(parts.logits(out, book), book))
        start += x.shape[1]
        if book < parts.codebooks - 1:
            x = parts.embed(codes[-1][:, None], book)  # [B, 1, H]
    return torch.stack(codes, dim=1)


def frame_cache(parts: PredictorParts, slots: int) -> KVCache:
    """A cache for up to `slots` frames at once. A frame overwrites what it reads, so it serves all frames."""
    # The last code is never fed back, so K codes need K positions: the hidden state and codes 0..K-2.
    cache: KVCache = parts.stack.new_frame_cache(slots, parts.codebooks)
    return cache


class PredictorByStep:
    """A `CodePredictor` of parts, in torch: codebook by codebook."""

    def new_memory(self: PredictorParts, slots: int) -> KVCache:
        return frame_cache(self, slots)

    def complete(
        self: PredictorParts, cache: KVCache | None, hidden: Tensor, code0: Tensor, embed0: Tensor, draws: CodeDraws
    ) -> tuple[Tensor, Tensor]:
        assert cache is not None
        draw = Draw(draws)
        return complete_by_steps(self, cache, hidden, code0, embed0, draw), draw.finite()
