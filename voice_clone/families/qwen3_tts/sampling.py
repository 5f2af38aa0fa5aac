"""How codes are drawn: the checkpoint's defaults, the common knobs, and what only Qwen3-TTS has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voice_clone.autoregressive.sampling import SamplingOptions, sampling_options
from voice_clone.families.qwen3_tts.family import SamplingDefaults
from voice_clone.speech import check_ranges


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
        return sampling_options(self.do_sample, self.temperature, self.top_k, self.top_p)

    @property
    def others(self) -> SamplingOptions:
        return sampling_options(
            self.subtalker_do_sample, self.subtalker_temperature, self.subtalker_top_k, self.subtalker_top_p
        )

    @property
    def columns(self) -> NDArray[np.float64]:
        return np.array([self.repetition_penalty, *self.first, *self.others])

    @classmethod
    def from_defaults(cls, defaults: SamplingDefaults, *, seed: int) -> SamplingParameters:
        """The checkpoint's own parameters; `dataclasses.replace` changes single ones."""
        return cls(seed=seed, **vars(defaults))
