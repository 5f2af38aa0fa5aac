"""How codes are drawn: the checkpoint's defaults, the common knobs, and what only Qwen3-TTS has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voice_clone.autoregressive.sampling import SamplingOptions, sampling_options
from voice_clone.speech import check_ranges


@dataclass(frozen=True)
class SamplingDefaults:
    """`generation_config.json`; the fall-backs are those of the official package, but for `part_characters`.

    `subtalker_*` govern codebooks 1..15, the others codebook 0; see `sampling_options`.

    Attributes:
        part_characters: how long a text the model speaks well in one piece; within a piece its pace climbs. About 40 s.
    """

    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    subtalker_do_sample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0
    max_new_tokens: int = 2048
    part_characters: int = 600


@dataclass(frozen=True, kw_only=True)
class SamplingParameters(SamplingDefaults):
    """How one stream's codes are drawn: by the checkpoint's defaults, or what the caller gave in their place.

    A `voice_clone.autoregressive.sampling.CodeSampling`.

    Attributes:
        seed: 64 bits; with the prompt it determines all draws.

    Raises:
        InvalidArgument: on construction, if a value is out of range.
    """

    seed: int

    def __post_init__(self) -> None:
        check_ranges(vars(self))
        check_ranges(vars(self), "subtalker_")

    @property
    def first(self) -> SamplingOptions:
        """Of codebook 0."""
        return sampling_options(self.do_sample, self.temperature, self.top_k, self.top_p)

    @property
    def others(self) -> SamplingOptions:
        """Of the other codebooks."""
        return sampling_options(
            self.subtalker_do_sample, self.subtalker_temperature, self.subtalker_top_k, self.subtalker_top_p
        )

    @property
    def columns(self) -> NDArray[np.float64]:
        """As of `CodeSampling`."""
        return np.array([self.repetition_penalty, *self.first, *self.others])

    @classmethod
    def from_defaults(cls, defaults: SamplingDefaults, *, seed: int) -> SamplingParameters:
        """The checkpoint's own parameters; `dataclasses.replace` changes single ones."""
        return cls(seed=seed, **vars(defaults))
