"""Checks and limits of requests that the prompt and talker stages of all families share. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voice_clone.errors import InvalidArgument, Unsupported, quoted
from voice_clone.family import Family
from voice_clone.request_fields import KNOBS
from voice_clone.speech import SpeechRequest, check_ranges, has_words
from voice_clone.speech import check_options as check_types
from voice_clone.stages.protocols import Arrays


def refuse_speaker_embedding(speech: SpeechRequest) -> None:
    """For a family that has no speaker embedding.

    Raises:
        Unsupported: the request brings one, or asks for it.
    """
    if speech.speaker_embedding is not None or speech.x_vector_only:
        raise Unsupported("this model has no speaker embedding; give a `voice` or `reference_audio`")


def refuse_language(speech: SpeechRequest) -> None:
    """For a family that finds the language out by itself.

    Raises:
        Unsupported: the request names one; `Auto` is none.
    """
    if (speech.language or "auto").strip().lower() != "auto":
        raise Unsupported(f"this model takes no `language`, got {quoted(speech.language)}; leave it out")


def check_plan(card: Family, prompt: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Check what a talker is asked for against its family's card: tensors of the prompt, knobs and options.

    Raises:
        Unsupported: the family has no such knob.
        InvalidArgument: a tensor is missing, an option is unknown or of another type, or a value is out of range.
    """
    check_options(card, options)
    for name in KNOBS:
        if name in knobs and name not in (*card.knobs, "seed", "max_frames", "non_streaming_mode"):
            raise Unsupported(f"this model has no `{name}`; leave it out")
    if knobs.get("non_streaming_mode") is False and "non_streaming_mode" not in card.knobs:
        raise Unsupported("this model reads the whole text first: `non_streaming_mode` cannot be false")
    check_ranges(knobs)
    for name in card.prompt:
        if name not in prompt:
            raise InvalidArgument(f"prompt lacks {name}; the prompt stage makes it")


def check_options(card: Family, options: Mapping[str, Any]) -> None:
    """Check the options of a request against its family's card.

    Raises:
        InvalidArgument: one is unknown, of another type or out of range; the message says what would be right.
    """
    check_types(options, {each.name: each.type for each in card.options})
    for option in card.options:
        value = options.get(option.name)
        if value is None:
            continue
        if option.least is not None and option.most is not None and not option.least <= value <= option.most:  # NaN
            right = f"lie in {option.least:g}..{option.most:g}"
        elif option.choices and value not in option.choices:
            right = f"be one of {', '.join(option.choices)}"
        elif option.words and not has_words(value):
            raise InvalidArgument(f"`options.{option.name}` is blank; say {option.meaning}, or leave it out")
        else:
            continue
        raise InvalidArgument(f"`options.{option.name}` is {quoted(value)}; it must {right}")


def granted_frames(budget: int, max_frames: int | None, room: int) -> tuple[int, bool]:
    """`max_frames` and `budgeted` of a `TalkerRequest`.

    Args:
        budget: what the family grants the text.
        max_frames: the caller's, if it gave them. They may be more than `room`: the engine then refuses the stream.
        room: frames that fit the stream's slot behind the prompt. The budget is cut to them.
    """
    if max_frames is None:
        return max(1, min(budget, room)), True
    frames = min(budget, max_frames)
    return frames, frames != max_frames


@dataclass(frozen=True)
class FrameBudget:
    """How many frames a family grants a text. A talker that misses its end then stops in reasonable time.

    Attributes:
        least: even the shortest text may take so many.
        per_token: a text of n tokens rarely takes more than n times so many.
        most: of any text.
    """

    least: int
    per_token: int
    most: int

    def limit(self, tokens: int, max_frames: int | None, room: int) -> tuple[int, bool]:
        """As `granted_frames`, of a text of so many tokens."""
        return granted_frames(max(self.least, self.per_token * tokens), max_frames, min(self.most, room))
