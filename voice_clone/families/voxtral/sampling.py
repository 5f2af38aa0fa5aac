"""How frames are drawn."""

from __future__ import annotations

from dataclasses import dataclass

from voice_clone.autoregressive.sampling import check_sampling_options
from voice_clone.errors import InvalidArgument

GUIDANCE = 1.2  # as upstream serves the model
MOST_GUIDANCE = 10.0


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """What decides the frames of a stream beside its prompt.

    Attributes:
        seed: 64 bits; with the prompt it determines all noise.
        guidance: how far the flow goes from what it would make without the text and the voice to what it makes with
            them (classifier-free guidance, Ho & Salimans 2022); 1: all the way, more: beyond.

    Raises:
        InvalidArgument: on construction, if a value is out of range.
    """

    seed: int
    guidance: float = GUIDANCE

    def __post_init__(self) -> None:
        check_sampling_options({"seed": self.seed})
        if not 0 <= self.guidance <= MOST_GUIDANCE:  # NaN is not
            raise InvalidArgument(f"guidance must be a number from 0 to {MOST_GUIDANCE:g}, got {self.guidance}")
