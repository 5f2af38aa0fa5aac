"""Sampling: from logits to codes, every stream of a batch with parameters of its own.

The order of the steps is that of transformers 4.57.3 `generate` as qwen-tts 0.1.1 calls it: repetition penalty,
end-of-speech forbidden in the first two frames, suppressed ids; then temperature, top-k, top-p; then the draw. The
draw is ours: inverse transform sampling with a counter-based uniform (see philox.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts.config import SamplingDefaults, TalkerConfig

MIN_FRAMES = 2
CONTROL_IDS = 1024  # the last ids of the talker's vocabulary are control tokens, never codes
LARGEST_K = 1 << 20  # beyond any vocabulary


Knobs = tuple[float, float, float, float]
"""Of one row of a sampler: do_sample, temperature, top_k, top_p."""


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """How one stream's codes are drawn. `subtalker_*` govern codebooks 1..15, the others codebook 0.

    Attributes:
        seed: 64 bits; with the prompt it determines all draws.
        do_sample: false takes the most likely code; temperature, top_k and top_p then play no part.
        temperature: above 0.
        top_k: keep the k most likely codes (and ties of the k-th); 0 keeps all.
        top_p: keep the most likely codes whose probabilities add up to p, in (0, 1].
        repetition_penalty: above 0; logits of codes that this stream has used are divided (if positive) or
            multiplied (if negative) by it. Keskar et al. 2019.

    Raises:
        InvalidArgument: on construction, if a value is out of range.
    """

    seed: int
    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    subtalker_do_sample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise InvalidArgument("seed must be a number of 64 bits, from 0 to 2**64 - 1")
        for name in ("temperature", "subtalker_temperature", "repetition_penalty"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidArgument(f"{name} must be a number above 0, got {value}")
        for name in ("top_p", "subtalker_top_p"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise InvalidArgument(f"{name} must be above 0 and at most 1, got {value}")
        for name in ("top_k", "subtalker_top_k"):
            value = getattr(self, name)
            if value < 0:
                raise InvalidArgument(f"{name} must be 0 (off) or a positive number, got {value}")

    @property
    def first(self) -> Knobs:
        """What the sampler of codebook 0 takes."""
        return _knobs(self.do_sample, self.temperature, self.top_k, self.top_p)

    @property
    def others(self) -> Knobs:
        """What the sampler of the other codebooks takes."""
        return _knobs(self.subtalker_do_sample, self.subtalker_temperature, self.subtalker_top_k, self.subtalker_top_p)

    @classmethod
    def from_defaults(cls, defaults: SamplingDefaults, *, seed: int) -> SamplingParameters:
        """The checkpoint's own parameters; `dataclasses.replace` changes single ones."""
        return cls(
            seed=seed,
            do_sample=defaults.do_sample,
            temperature=defaults.temperature,
            top_k=defaults.top_k,
            top_p=defaults.top_p,
            repetition_penalty=defaults.repetition_penalty,
            subtalker_do_sample=defaults.subtalker_dosample,
            subtalker_temperature=defaults.subtalker_temperature,
            subtalker_top_k=defaults.subtalker_top_k,
            subtalker_top_p=defaults.subtalker_top_p,
        )


def _knobs(do_sample: bool, temperature: float, top_k: int, top_p: float) -> Knobs:
    # A temperature below the smallest fp32 number has the same effect as that number.
    return float(do_sample), max(temperature, torch.finfo(torch.float32).tiny), min(top_k, LARGEST_K), top_p


@dataclass(frozen=True)
class Filters:
    """What of the sampler some row of a batch needs, so that the rest is left out; it changes no row's result.

    Attributes:
        sampled: a draw. Without it every row takes its most likely code.
        top_k: the k most likely codes, for any k up to this; 0: no row keeps only some.
        top_p: the sort that top-p takes.
    """

    sampled: bool
    top_k: int
    top_p: bool

    @classmethod
    def of(cls, knobs: npt.NDArray[np.float64]) -> Filters:
        """Exactly what B rows of knobs [B, 4] need."""
        sampled = knobs[knobs[:, 0] != 0]
        if not len(sampled):
            return cls(False, 0, False)
        return cls(True, int(sampled[:, 2].max()), bool((sampled[:, 3] < 1).any()))

    def covers(self, other: Filters) -> bool:
        """Whether this does for all that `other` does for."""
        return self.sampled >= other.sampled and self.top_k >= other.top_k and self.top_p >= other.top_p


class Sampler:
    """Draws one code for each of B streams, without a look at any value on the device."""

    def __init__(self, knobs: Tensor, filters: Filters) -> None:
        """`knobs` fp32 [B, 4]: each stream's `first` or `others`. `filters` must do for all of them."""
        self.filters = filters
        self.do_sample = knobs[:, 0] != 0
        self.temperature = knobs[:, 1:2]
        self.k = knobs[:, 2:3].long()
        self.p = knobs[:, 3:4]

    def __call__(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """logits fp32 [B, V], uniform fp64 [B] in [0, 1) -> codes int64 [B].

        A row that is not finite gives some code in 0..V-1 and touches no other row.
        """
        most_likely = logits.argmax(dim=-1)
        if not self.filters.sampled:
            return most_likely
        # Shifted so that no temperature can overflow; probabilities do not change.
        scores = (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature
        if self.filters.top_k:
            most = min(self.filters.top_k, scores.shape[1])
            best = scores.topk(most, dim=-1).values
            kth = best.gather(1, (self.k - 1).clamp(0, most - 1))
            scores = scores.masked_fill((scores < kth) & (self.k > 0), -torch.inf)
        if self.filters.top_p:
            scores = self._keep_top_p(scores)
        cumulative = scores.softmax(dim=-1).double().cumsum(dim=-1)
        # The first code whose cumulative probability exceeds the draw; a code of probability 0 never is that.
        target = uniform[:, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, target, right=True)[:, 0]
        return torch.where(self.do_sample, drawn.clamp(max=logits.shape[1] - 1), most_likely)

    def _keep_top_p(self, scores: Tensor) -> Tensor:
        ascending, order = scores.sort(dim=-1)
        removed = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - self.p  # at p = 1 only what has no probability
        removed[:, -1].fill_(False)  # the most likely code always stays
        return scores.masked_fill(torch.zeros_like(removed).scatter(1, order, removed), -torch.inf)


class Draw:
    """Chooses the codes of codebooks 1, 2, ... of B frames, one codebook after the other.

    Attributes:
        knobs: fp32 [B, 4], each stream's `others`.
        uniform: fp64 [B, K], the draws.
        finite: bool [B], whether all logits were that were seen.
    """

    def __init__(self, knobs: Tensor, filters: Filters, uniform: Tensor) -> None:
        self.knobs = knobs
        self.uniform = uniform
        self.finite = torch.ones(knobs.shape[0], dtype=torch.bool, device=knobs.device)
        self._filters = filters

    @cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self.knobs, self._filters)

    def __call__(self, logits: Tensor, book: int) -> Tensor:
        """logits [B, V] of a codebook -> codes int64 [B]."""
        logits = logits.float()
        self.finite = self.finite & torch.isfinite(logits).all(dim=-1)
        return self._sampler(logits, self.uniform[:, book])


def suppressed_ids(config: TalkerConfig, device: torch.device) -> Tensor:
    """The ids codebook 0 may never take: control tokens but for end of speech. bool [V]."""
    mask = torch.zeros(config.vocab_size, dtype=torch.bool, device=device)
    mask[config.vocab_size - CONTROL_IDS :] = True
    mask[config.codec_eos_token_id] = False
    return mask


def penalise(logits: Tensor, used: Tensor, penalty: Tensor) -> Tensor:
    """Repetition penalty. logits [B, V], used bool [B, V], penalty [B, 1] -> [B, V]."""
    return torch.where(used, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
