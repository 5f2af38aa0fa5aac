"""How codes are sampled: the options of streams, and what a batch of them needs.

The samplers of samplers.py, in torch, and those of native code read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers
from voice_clone.speech import check_ranges

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
    def columns(self) -> npt.NDArray[np.float64]:
        """[9]: the penalty, the options of the sampler of codebook 0, and those of the other codebooks'.

        The penalty is above 0; logits of codes that this stream has used are divided (if positive) or multiplied (if
        negative) by it (Keskar et al. 2019). 1: none.
        """


def sampling_options(do_sample: bool, temperature: float, top_k: int, top_p: float) -> SamplingOptions:
    """The options of a sampler.

    Args:
        do_sample: false takes the most likely code; the others then play no part.
        temperature: above 0. One below the smallest fp32 number has the same effect as that number.
        top_k: keep the k most likely codes (and ties of the k-th); 0 keeps all.
        top_p: keep the most likely codes whose probabilities add up to p, in (0, 1].
    """
    least = float(np.finfo(np.float32).tiny)
    return SamplingOptions(float(do_sample), max(temperature, least), min(top_k, LARGEST_K), top_p)


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

    def __post_init__(self) -> None:
        check_ranges(vars(self))

    @property
    def first(self) -> SamplingOptions:
        return sampling_options(self.do_sample, self.temperature, self.top_k, self.top_p)

    @property
    def others(self) -> SamplingOptions:
        return self.first

    @property
    def columns(self) -> npt.NDArray[np.float64]:
        return np.array([1.0, *self.first, *self.others])


class Filters(NamedTuple):
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
FILTER_FIRST_VARIANTS = (GRAPH_VARIANTS[0], GRAPH_VARIANTS[-1])
"""Those of a sampler that filters first, which always sorts its codes."""


class SamplerKind(NamedTuple):
    """What a sampler keeps of the codes.

    Attributes:
        filters_first: top-k and top-p look at the probabilities before the temperature changes them.
        crossing: then, whether the code with which the sum of the probabilities comes to `top_p` stays.
    """

    filters_first: bool = False
    crossing: bool = False


FILTERS_LAST, FILTERS_FIRST = SamplerKind(), SamplerKind(filters_first=True)
NUCLEUS = SamplerKind(filters_first=True, crossing=True)
"""Keeps the fewest likely codes whose probabilities add up to `top_p` (nucleus sampling, Holtzman et al. 2020); the sum
is over all codes, also if top-k drops some.
"""


class CodeDraws(NamedTuple):
    """How the codes of codebooks 1, 2, ... of B frames are drawn.

    Attributes:
        options: fp32 [B, 4], each stream's `others`.
        filters: that serve all of them.
        uniform: fp64 [B, K], the draws.
        kind: of the sampler.
    """

    options: Numbers
    filters: Filters
    uniform: Numbers
    kind: SamplerKind = FILTERS_LAST
