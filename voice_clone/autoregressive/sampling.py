"""Sampling: from logits to codes, every stream of a batch with parameters of its own.

The order of the steps is that of transformers 4.57.3 `generate`: repetition penalty, end of speech forbidden in the
first frames, suppressed ids; then temperature, top-k, top-p; then the draw. The draw is inverse transform sampling with
a counter-based uniform (see philox.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from voice_clone.errors import InvalidArgument

LARGEST_K = 1 << 20  # beyond any vocabulary


class SamplingOptions(NamedTuple):
    """How a sampler draws the codes of one row, as numbers of a table; `sampling_options` makes them."""

    do_sample: float  # 0 or 1
    temperature: float
    top_k: float
    top_p: float


class CodeSampling(Protocol):
    """How the codes of one stream are drawn."""

    @property
    def seed(self) -> int:
        """64 bits; with the prompt it determines all draws."""

    @property
    def repetition_penalty(self) -> float:
        """Above 0; logits of codes that this stream has used are divided (if positive) or multiplied (if negative) by
        it (Keskar et al. 2019). 1: none.
        """

    @property
    def first(self) -> SamplingOptions:
        """The sampler of codebook 0."""

    @property
    def others(self) -> SamplingOptions:
        """The sampler of the other codebooks."""


def sampling_options(do_sample: bool, temperature: float, top_k: int, top_p: float) -> SamplingOptions:
    """The options of a sampler.

    Args:
        do_sample: false takes the most likely code; the others then play no part.
        temperature: above 0. One below the smallest fp32 number has the same effect as that number.
        top_k: keep the k most likely codes (and ties of the k-th); 0 keeps all.
        top_p: keep the most likely codes whose probabilities add up to p, in (0, 1].
    """
    least = torch.finfo(torch.float32).tiny
    return SamplingOptions(float(do_sample), max(temperature, least), min(top_k, LARGEST_K), top_p)


def check_sampling_options(values: Mapping[str, Any], prefix: str = "") -> None:
    """Check `seed`, `temperature`, `top_k`, `top_p` and `repetition_penalty`, as far as `values` has them.

    Args:
        prefix: of their names there.

    Raises:
        InvalidArgument: one is out of range; the message gives its whole name.
    """
    for name, (right, check) in _CHECKS.items():
        value = values.get(prefix + name)
        if value is not None and not check(value):
            raise InvalidArgument(f"{prefix}{name} must be {right}, got {value}")


def _is_above_zero(value: Any) -> bool:
    """Also of a whole number, which may be too large for a float."""
    return bool(0 < value <= sys.float_info.max)  # NaN and infinity are not


_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "seed": ("a number of 64 bits, from 0 to 2**64 - 1", lambda value: 0 <= value < 2**64),
    "temperature": ("a number above 0", _is_above_zero),
    "repetition_penalty": ("a number above 0", _is_above_zero),
    "top_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "top_k": ("0 (off) or a positive number", lambda value: value >= 0),
}


S = TypeVar("S", bound="OneSampling")


@dataclass(frozen=True, kw_only=True)
class OneSampling:
    """A `CodeSampling` of one sampler for all codebooks, without a repetition penalty. A family sets the defaults.

    Attributes:
        seed: 64 bits; with the prompt it determines all draws.
        do_sample: false takes the most likely code; the others then play no part.
        temperature: above 0.
        top_k: codes of this rank or more are dropped; 0 drops none.
        top_p: what the family's sampler keeps of the probability, in (0, 1].

    Raises:
        InvalidArgument: on construction, if a value is out of range.
    """

    seed: int
    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty = 1.0

    def __post_init__(self) -> None:
        check_sampling_options(vars(self))

    @classmethod
    def of(cls: type[S], knobs: Mapping[str, Any]) -> S:
        """The caller's knobs, of which it may have others; the defaults where it gave none."""
        return cls(**{"seed": 0, **{name: knobs[name] for name in cls.__dataclass_fields__ if name in knobs}})

    @property
    def first(self) -> SamplingOptions:
        """Of codebook 0."""
        return sampling_options(self.do_sample, self.temperature, self.top_k, self.top_p)

    @property
    def others(self) -> SamplingOptions:
        """Of the other codebooks."""
        return self.first


@dataclass(frozen=True)
class Filters:
    """The parts of a sampler that some row of a batch needs. Other parts are skipped; no row's result changes.

    Attributes:
        sampled: a draw. Without it every row takes its most likely code.
        top_k: the k most likely codes, for any k up to this; 0: no row keeps only some.
        top_p: the sort that top-p takes.
        limited: every row of a stream draws among its k most likely codes alone, so the work for other rows is
            skipped.
    """

    sampled: bool
    top_k: int
    top_p: bool
    limited: bool = False

    @classmethod
    def of(cls, options: npt.NDArray[np.float64]) -> Filters:
        """Exactly what B rows of options [B, 4] need, all of them of streams."""
        sampled = options[options[:, 0] != 0]
        if not len(sampled):
            return cls(False, 0, False)
        limited = len(sampled) == len(options) and bool((sampled[:, 2] >= 1).all())
        return cls(True, int(sampled[:, 2].max()), bool((sampled[:, 3] < 1).any()), limited)

    def covers(self, other: Filters) -> bool:
        """Whether this serves every row that `other` serves."""
        enough = self.sampled >= other.sampled and self.top_k >= other.top_k and self.top_p >= other.top_p
        return enough and self.limited <= other.limited


WHOLE = Filters(True, 0, False)  # draws among all codes
USUAL = Filters(True, 64, False, limited=True)
# The filters that CUDA graphs are recorded for. A step takes the first one that covers all its rows: the most
# likely code; all rows among their k most likely codes, which is usual; only some of them so; anything, with sorts.
GRAPH_VARIANTS = (Filters(False, 0, False), USUAL, Filters(True, 64, False), Filters(True, LARGEST_K, True))


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


FILTER_FIRST_VARIANTS = (GRAPH_VARIANTS[0], GRAPH_VARIANTS[-1])
"""Those of a `FilterFirstSampler`, which always sorts its codes."""


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
        """As `Sampler.__call__`."""
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
    """A `FilterFirstSampler` that keeps the fewest likely codes whose probabilities add up to `top_p`.

    Nucleus sampling as Holtzman et al. 2020 define it; the sum is over all codes, also if top-k drops some.
    """

    crossing = True


class Draw:
    """Chooses the codes of codebooks 1, 2, ... of B frames, one codebook after the other.

    Attributes:
        options: fp32 [B, 4], each stream's `others`.
        uniform: fp64 [B, K], the draws.
        rule: the sampler.
    """

    def __init__(self, options: Tensor, filters: Filters, uniform: Tensor, rule: type[Sampler] = Sampler) -> None:
        self.options = options
        self.uniform = uniform
        self._finite: Tensor | None = None
        self._seen: list[Tensor] = []  # logits that are not in it
        self.rule = rule
        self._filters = filters

    @cached_property
    def _sampler(self) -> Sampler:
        return self.rule(self.options, self._filters)

    def __call__(self, logits: Tensor, book: int) -> Tensor:
        """logits [B, V] of a codebook -> codes int64 [B]."""
        self._seen.append(logits)
        return self._sampler(logits.float(), self.uniform[:, book])

    @property
    def finite(self) -> Tensor:
        """bool [B], whether all logits were that were seen: one look at all of them."""
        if self._seen:
            finite = finite_rows(torch.cat(self._seen, dim=-1))
            self.finite = finite if self._finite is None else self._finite & finite
            self._seen = []
        if self._finite is None:
            self.finite = torch.ones(self.options.shape[0], dtype=torch.bool, device=self.options.device)
        assert self._finite is not None
        return self._finite

    @finite.setter
    def finite(self, finite: Tensor) -> None:
        self._finite = finite


def finite_rows(logits: Tensor) -> Tensor:
    """[B, V] -> bool [B], whether all of a row is finite: a norm is that only then."""
    largest: Tensor = torch.linalg.vector_norm(logits, torch.inf, dim=-1)
    return largest < torch.inf


def penalise(logits: Tensor, used: Tensor, penalty: Tensor) -> Tensor:
    """Repetition penalty. logits [B, V], used bool [B, V], penalty [B, 1] -> [B, V]."""
    return torch.where(used, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
