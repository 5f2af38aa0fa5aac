"""One stream for the talker: the prompt, how its codes are drawn, and how long it may get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from voice_clone.autoregressive.sampling import SamplingParameters
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.prefill import prefill_length
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.speech_request import frame_budget


@dataclass(frozen=True, eq=False)
class TalkerRequest:
    """What the generator starts a stream with."""

    prompt: Prompt
    sampling: SamplingParameters
    max_frames: int


def build_request(
    prompt: Prompt,
    knobs: Mapping[str, Any],
    seed: int,
    max_frames: int | None,
    config: Qwen3TTSConfig,
    max_length: int,
) -> TalkerRequest:
    """A request with the caller's knobs over the checkpoint's defaults.

    Args:
        knobs: fields of `SamplingParameters` by name; None leaves the checkpoint's default.
        max_frames: the caller's limit, which must fit the slot; None takes the budget that the text allows, cut
            to what the slot holds.
        max_length: positions of a slot.

    Raises:
        InvalidArgument: a knob is out of range.
    """
    given = {name: value for name, value in knobs.items() if value is not None}
    sampling = replace(SamplingParameters.from_defaults(config.sampling, seed=seed), **given)
    budget = frame_budget(len(prompt.text_ids), max_frames, config.sampling.max_new_tokens)
    if max_frames is None:
        budget = max(1, min(budget, max_length - prefill_length(prompt)))
    return TalkerRequest(prompt, sampling, budget)
