"""How codes are drawn: a `voice_clone.autoregressive.sampling.CodeSampling`."""

from __future__ import annotations

from dataclasses import dataclass

from voice_clone.autoregressive.sampling import SamplingOptions, check_sampling_options, sampling_options


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """The same sampler, an `FilterFirstSampler`, for all codebooks; the defaults are the official ones.

    Attributes:
        seed: 64 bits; with the prompt it determines all draws.
        do_sample: false takes the most likely code, without repetition-aware sampling; the others then play no part.
        temperature: above 0.
        top_k: codes of this rank or more are dropped; 0 drops none.
        top_p: codes beyond this cumulative probability are dropped, in (0, 1].

    Raises:
        InvalidArgument: on construction, if a value is out of range.
    """

    seed: int
    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 30
    top_p: float = 0.9
    repetition_penalty = 1.0

    def __post_init__(self) -> None:
        check_sampling_options(vars(self))

    @property
    def first(self) -> SamplingOptions:
        """Of codebook 0."""
        return sampling_options(self.do_sample, self.temperature, self.top_k, self.top_p)

    @property
    def others(self) -> SamplingOptions:
        """Of the other codebooks."""
        return self.first
