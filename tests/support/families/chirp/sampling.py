"""How chirp draws its codes: a `voice_clone.autoregressive.sampling.CodeSampling`."""

from __future__ import annotations

from dataclasses import dataclass

from voice_clone.autoregressive.sampling import SamplingOptions, check_sampling_options, sampling_options


@dataclass(frozen=True, kw_only=True)
class ChirpSampling:
    """The same sampler for all codebooks, and no repetition penalty.

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

    @property
    def first(self) -> SamplingOptions:
        """Of codebook 0."""
        return sampling_options(self.do_sample, self.temperature, self.top_k, self.top_p)

    @property
    def others(self) -> SamplingOptions:
        """Of the other codebooks."""
        return self.first
