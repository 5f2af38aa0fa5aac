"""How codes are drawn: the checkpoint's defaults, the common knobs, and what only Qwen3-TTS has."""

from __future__ import annotations

from dataclasses import dataclass

from voice_clone.autoregressive.sampling import SamplingOptions, check_sampling_options, sampling_options
from voice_clone.families.qwen3_tts.config import SamplingDefaults


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """How one stream's codes are drawn. `subtalker_*` govern codebooks 1..15, the others codebook 0.

    A `voice_clone.autoregressive.sampling.CodeSampling`.

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
        check_sampling_options(vars(self))
        check_sampling_options(vars(self), "subtalker_")

    @property
    def first(self) -> SamplingOptions:
        """What the sampler of codebook 0 takes."""
        return sampling_options(self.do_sample, self.temperature, self.top_k, self.top_p)

    @property
    def others(self) -> SamplingOptions:
        """What the sampler of the other codebooks takes."""
        return sampling_options(
            self.subtalker_do_sample, self.subtalker_temperature, self.subtalker_top_k, self.subtalker_top_p
        )

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
