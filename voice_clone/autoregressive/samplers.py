"""Samplers in torch: from logits to codes, every stream of a batch with parameters of its own.

The order of the steps is that of transformers 4.57.3 `generate`: repetition penalty, end of speech forbidden in the
first frames, suppressed ids; then temperature, top-k, top-p; then the draw. The draw is inverse transform sampling with
a counter-based uniform (see philox.py).
"""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from voice_clone.autoregressive.sampling import FILTERS_FIRST, FILTERS_LAST, NUCLEUS, CodeDraws, Filters, SamplerKind


class Sampler:
    """Draws one code for each of B streams, without a look at any value on the device."""

    def __init__(self, options: Tensor, filters: Filters) -> None:
        """`options` fp32 [B, 4]: each stream's `first` or `others`. `filters` must serve all of them."""
        self.filters = filters
        self.options = options
        self.temperature = options[:, 1:2]
        self.p = options[:, 3:4]
        self._kth: dict[int, Tensor] = {}

    def __call__(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """logits fp32 [B, V], uniform fp64 [B] in [0, 1) -> codes int64 [B].

        A row that is not finite gives some code in 0..V-1 and touches no other row.
        """
        if not self.filters.sampled:
            return logits.argmax(dim=-1)
        highest, most_likely = logits.max(dim=-1, keepdim=True)
        # Shifted so that no temperature can overflow; probabilities do not change.
        scores = (logits - highest) / self.temperature
        if self.filters.top_k:
            most = min(self.filters.top_k, scores.shape[1])
            kth = scores.topk(most, dim=-1).values.gather(1, self._place_of_kth(most))
            if self.filters.limited:
                # NaN is not among the best. So no score is NaN now, and one at least is finite: each draw is a code.
                scores = torch.where(scores >= kth, scores, self._lowest)
            else:
                kth = kth.masked_fill(self._unlimited, -torch.inf)
                scores = scores.masked_fill(scores < kth, -torch.inf)
        if self.filters.top_p:
            scores = self._keep_top_p(scores)
        if self.filters.limited:
            return self._drawn(scores, uniform)
        return self._chosen(self._drawn(scores, uniform), most_likely[:, 0], scores.shape[1])

    @cached_property
    def k(self) -> Tensor:
        return self.options[:, 2:3].long()

    @cached_property
    def _unlimited(self) -> Tensor:
        return self.k <= 0

    @cached_property
    def _do_sample(self) -> Tensor:
        return self.options[:, 0] != 0

    @cached_property
    def _lowest(self) -> Tensor:
        """A finite score of probability 0, fp32 []. A row with no other score still has probabilities."""
        return torch.full((), torch.finfo(torch.float32).min, device=self.options.device)

    def _place_of_kth(self, most: int) -> Tensor:
        """Where the k-th of the `most` best codes stands, int64 [B, 1]."""
        if most not in self._kth:
            self._kth[most] = (self.k - 1).clamp(0, most - 1)
        return self._kth[most]

    def _drawn(self, scores: Tensor, uniform: Tensor) -> Tensor:
        """Codes drawn from scaled logits [B, V]; V of a row that is not finite, unless all are `limited`."""
        cumulative = scores.softmax(dim=-1).double().cumsum(dim=-1)
        # The first code whose cumulative probability exceeds the draw; a code of probability 0 never is that.
        target = uniform[:, None] * cumulative[:, -1:]
        return torch.searchsorted(cumulative, target, right=True)[:, 0]

    def _chosen(self, drawn: Tensor, most_likely: Tensor, vocabulary: int) -> Tensor:
        """What was drawn, in rows that sample; codes in any case."""
        return torch.where(self._do_sample, drawn.clamp(max=vocabulary - 1), most_likely)

    def _keep_top_p(self, scores: Tensor) -> Tensor:
        ascending, order = scores.sort(dim=-1)
        removed = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - self.p  # at p = 1 only what has no probability
        removed[:, -1].fill_(False)  # the most likely code always stays
        return scores.masked_fill(_in_order(removed, order), -torch.inf)


def _in_order(values: Tensor, order: Tensor) -> Tensor:
    """Values [B, V] of sorted codes -> those of the codes; `order` is where each stood."""
    return torch.empty_like(values).scatter_(1, order, values)


class FilterFirstSampler(Sampler):
    """A `Sampler` whose top-k and top-p look at the probabilities before the temperature changes them.

    It drops each code whose rank is `top_k` or more, and each but the first whose probability, added to those of the
    more likely codes, exceeds `top_p`. What is left is drawn from at the temperature (fish-speech, `logits_to_probs`).

    Attributes:
        crossing: whether the code with which the sum comes to `top_p` stays.
    """

    crossing = False

    def __init__(self, options: Tensor, filters: Filters) -> None:
        super().__init__(options, filters)
        self._limits_of: dict[int, Tensor] = {}  # by vocabulary

    def __call__(self, logits: Tensor, uniform: Tensor) -> Tensor:
        if not self.filters.sampled:
            return logits.argmax(dim=-1)
        highest, most_likely = logits.max(dim=-1, keepdim=True)
        below = logits - highest
        descending, order = below.sort(dim=-1, descending=True, stable=True)
        reached, limits = descending.softmax(dim=-1).cumsum(dim=-1), self._limits(logits.shape[1])
        removed = F.pad(reached[:, :-1], (1, 0)) >= limits if self.crossing else reached > limits
        scores = (below / self.temperature).masked_fill(_in_order(removed, order), -torch.inf)
        return self._chosen(self._drawn(scores, uniform), most_likely[:, 0], logits.shape[1])

    def _limits(self, vocabulary: int) -> Tensor:
        """How far the sum of probabilities may reach for the code of each rank to stay, fp32 [B, V]."""
        if vocabulary not in self._limits_of:
            ranks = torch.arange(vocabulary, device=self.options.device)
            limits = torch.where(self.p < 1, self.p, torch.inf).masked_fill(
                (ranks >= self.k) & (self.k > 0), -torch.inf
            )
            self._limits_of[vocabulary] = limits.masked_fill(ranks == 0, torch.inf)  # the most likely code always stays
        return self._limits_of[vocabulary]


class NucleusSampler(FilterFirstSampler):
    """A `FilterFirstSampler` of the kind `NUCLEUS`."""

    crossing = True


SAMPLERS: dict[SamplerKind, type[Sampler]] = {
    FILTERS_LAST: Sampler,
    FILTERS_FIRST: FilterFirstSampler,
    NUCLEUS: NucleusSampler,
}


class Draw:
    """Chooses the codes of codebooks 1, 2, ... of B frames, one codebook after the other."""

    def __init__(self, draws: CodeDraws) -> None:
        self._sampler = SAMPLERS[draws.kind](draws.options, draws.filters)
        self._uniform: Tensor = draws.uniform
        self._seen: list[Tensor] = []  # logits

    def __call__(self, logits: Tensor, book: int) -> Tensor:
        """logits [B, V] of a codebook -> codes int64 [B]."""
        self._seen.append(logits)
        return self._sampler(logits.float(), self._uniform[:, book])

    def finite(self) -> Tensor:
        """bool [B], whether all logits were that were seen: one look at all of them."""
        return finite_rows(torch.cat(self._seen, dim=-1))


def finite_rows(logits: Tensor) -> Tensor:
    """[B, V] -> bool [B], whether all of a row is finite: a norm is that only then."""
    largest: Tensor = torch.linalg.vector_norm(logits, torch.inf, dim=-1)
    return largest < torch.inf


def penalise(logits: Tensor, used: Tensor, penalty: Tensor) -> Tensor:
    """Repetition penalty. logits [B, V], used bool [B, V], penalty [B, 1] -> [B, V]."""
    return torch.where(used, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
