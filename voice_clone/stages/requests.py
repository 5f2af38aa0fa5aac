"""Checks and limits of requests that the prompt and talker stages of all families share. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from voice_clone.errors import InvalidArgument, Unsupported, quoted
from voice_clone.family import Family, FrameBudget
from voice_clone.request_fields import KNOBS
from voice_clone.speakers.record import INSTRUCTIONS, NEUTRAL
from voice_clone.speech import SpeechRequest, check_ranges, find_language, has_words, list_languages
from voice_clone.speech import check_options as check_types
from voice_clone.stages.protocols import Arrays


def in_words(speech: SpeechRequest) -> tuple[SpeechRequest, str | None]:
    """A speech whose list of styles ends with `instructions`, as one that ends with `neutral`, and its first style:
    the words for a model that follows some, if the voice has no clip of these styles. None: the list ends otherwise.

    Raises:
        InvalidArgument: there is no style before it, or the first one is empty.
    """
    *names, last = [name.strip() for name in (speech.style or "").split(",")]
    if last.lower() != INSTRUCTIONS:
        return speech, None
    if not names or not names[0]:
        raise InvalidArgument(f"`style` {INSTRUCTIONS} stands behind a style, such as happy,{INSTRUCTIONS}")
    neutral = NEUTRAL in (name.lower() for name in names)
    return replace(speech, style=",".join([*names, NEUTRAL])), None if neutral else names[0]


def check_speech(card: Family, speech: SpeechRequest) -> None:
    """Check what a prompt stage is asked for against its family's card.

    Raises:
        Unsupported: the family takes no speaker embedding, or not this language.
        InvalidArgument: an option is wrong, or the clip has no transcript and the family needs one.
    """
    if (speech.speaker_embedding is not None and not card.embedding) or (
        speech.x_vector_only and not card.x_vector_only
    ):
        raise Unsupported("this model takes no speaker embedding; give a `voice` or `reference_audio`")
    if card.languages is not None and find_language(speech.language, ("auto", *card.languages)) is None:
        asked = quoted(speech.language)
        if not card.languages:
            raise Unsupported(f"this model takes no `language`, got {asked}; leave it out")
        raise Unsupported(f"this model speaks {list_languages(card.languages)}; the `language` {asked} is none of them")
    check_options(card, speech.options)
    needed = card.artifacts and all("reference_text" in needs for needs in card.modes.values())
    if needed and speech.reference_audio is not None and speech.reference_text is None:
        raise InvalidArgument("this model needs `reference_text`, the words spoken in `reference_audio`")


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


def granted_frames(budget: FrameBudget, tokens: int, max_frames: int | None, room: int) -> tuple[int, bool]:
    """`max_frames` and `budgeted` of a `TalkerRequest`.

    Args:
        tokens: of the text.
        max_frames: the caller's, if it gave them. They may be more than `room`: the engine then refuses the stream.
        room: frames that fit the stream's slot behind the prompt. The budget is cut to them.
    """
    granted = max(budget.least, budget.per_token * tokens + budget.more)
    if max_frames is None:
        return max(1, min(granted, budget.most, room)), True
    frames = min(granted, max_frames)
    return frames, frames != max_frames
