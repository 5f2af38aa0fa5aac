"""Sampling: from logits to codes, every stream of a batch with parameters of its own.

The order of the steps is that of transformers 4.57.3 `generate` as qwen-tts 0.1.1 calls it: repetition penalty,
end-of-speech forbidden in the first two frames, suppressed ids; then temperature, top-k, top-p; then the draw. The
draw is ours: inverse transform sampling with a counter-based uniform (see philox.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from voice_clone.errors import InvalidArgument
from voice_clone.qwen3_tts.config import SamplingDefaults, TalkerConfig

MIN_FRAMES = 2
CONTROL_IDS = 1024  # the last ids of the talker's vocabulary are control tokens, never codes


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


class Sampler:
    """Draws one code for each of B streams. Built once a step for each of codebook 0 and codebooks 1..15."""

    def __init__(self, rows: Sequence[tuple[bool, float, int, float]], vocab_size: int, device: torch.device) -> None:
        """`rows`: do_sample, temperature, top_k, top_p of each stream."""
        sampled = [row for row in rows if row[0]]
        self.any_sampled = bool(sampled)
        self.top_k = max((min(row[2], vocab_size) for row in sampled), default=0)
        self.any_top_p = any(row[3] < 1 for row in sampled)
        # One tensor, one transfer. A temperature below the smallest fp32 number has the same effect as that number.
        tiny = torch.finfo(torch.float32).tiny
        values = [(row[0], max(row[1], tiny), min(row[2], vocab_size), row[3]) for row in rows]
        table = torch.tensor(values, dtype=torch.float32, device=device)
        self.do_sample = table[:, 0] != 0
        self.temperature = table[:, 1:2]
        self.k = table[:, 2:3].long()
        self.p = table[:, 3:4]

    def __call__(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """logits fp32 [B, V], uniform fp64 [B] in [0, 1) -> codes int64 [B].

        A row that is not finite gives some code in 0..V-1 and touches no other row.
        """
        most_likely = logits.argmax(dim=-1)
        if not self.any_sampled:
            return most_likely
        # Shifted so that no temperature can overflow; probabilities do not change.
        scores = (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature
        if self.top_k:
            best = scores.topk(self.top_k, dim=-1).values
            kth = best.gather(1, (self.k - 1).clamp(0, self.top_k - 1))
            scores = scores.masked_fill((scores < kth) & (self.k > 0), -torch.inf)
        if self.any_top_p:
            scores = self._keep_top_p(scores)
        cumulative = scores.softmax(dim=-1).double().cumsum(dim=-1)
        # The first code whose cumulative probability exceeds the draw; a code of probability 0 never is that.
        target = uniform[:, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, target, right=True)[:, 0]
        return torch.where(self.do_sample, drawn.clamp(max=logits.shape[1] - 1), most_likely)

    def _keep_top_p(self, scores: Tensor) -> Tensor:
        ascending, order = scores.sort(dim=-1)
        removed = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - self.p  # at p = 1 only what has no probability
        removed[:, -1] = False  # the most likely code always stays
        return scores.masked_fill(torch.zeros_like(removed).scatter(1, order, removed), -torch.inf)


def suppressed_ids(config: TalkerConfig, device: torch.device) -> Tensor:
    """The ids codebook 0 may never take: control tokens but for end of speech. bool [V]."""
    mask = torch.zeros(config.vocab_size, dtype=torch.bool, device=device)
    mask[config.vocab_size - CONTROL_IDS :] = True
    mask[config.codec_eos_token_id] = False
    return mask


def penalise(logits: Tensor, used: Tensor, penalty: Tensor) -> Tensor:
    """Repetition penalty. logits [B, V], used bool [B, V], penalty [B, 1] -> [B, V]."""
    return torch.where(used, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
