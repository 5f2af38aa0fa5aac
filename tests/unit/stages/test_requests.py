"""What prompt and talker stages of all families refuse and grant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.request_values import outside
from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.family import Family, FrameBudget, Option
from voice_clone.request_fields import FIELDS, KNOBS
from voice_clone.speech import SpeechRequest, list_languages
from voice_clone.stages import requests
from voice_clone_server.families.cards import cards

BUDGET = FrameBudget(least=192, per_token=12, most=8192)
ROOM = 10**6
CARDS = cards()
NAMES = [card.name for card in CARDS]


@pytest.mark.parametrize(
    ("tokens", "max_frames", "room", "limit"),
    [
        (1, None, ROOM, (192, True)),
        (100, None, ROOM, (1200, True)),
        (100, 50, ROOM, (50, False)),
        (100, 10**6, ROOM, (1200, True)),  # the caller's limit would come later
        (100, 1200, ROOM, (1200, False)),
        (10**4, None, ROOM, (8192, True)),
        (10**4, 10**4, ROOM, (10**4, False)),  # more than the family's default, as the caller wants it
        (100, None, 60, (60, True)),
        (100, None, -5, (1, True)),  # the prompt alone does not fit: the engine refuses it
        (100, 100, 60, (100, False)),  # the engine refuses it, too
    ],
)
def test_a_frame_budget(tokens: int, max_frames: int | None, room: int, limit: tuple[int, bool]) -> None:
    assert requests.granted_frames(BUDGET, tokens, max_frames, room) == limit


def test_a_frame_budget_with_frames_beside_those_of_the_tokens() -> None:
    assert requests.granted_frames(FrameBudget(per_token=6, more=10), 5, None, ROOM) == (40, True)


@pytest.mark.parametrize("card", CARDS, ids=NAMES)
def test_a_family_takes_of_a_voice_what_its_card_says(card: Family) -> None:
    requests.check_speech(card, SpeechRequest("Hello.", voice="Ada"))
    requests.check_speech(card, SpeechRequest("Hello.", voice="Ada", x_vector_only=False))
    for speech, taken in (
        (SpeechRequest("Hello.", voice="Ada", x_vector_only=True), card.x_vector_only),
        (SpeechRequest("Hello.", speaker_embedding=np.ones(8, np.float32)), card.embedding),
    ):
        if taken:
            requests.check_speech(card, speech)
        else:
            with pytest.raises(Unsupported, match="no speaker embedding"):
                requests.check_speech(card, speech)


@pytest.mark.parametrize("card", CARDS, ids=NAMES)
def test_a_clip_needs_its_transcript_if_each_mode_does(card: Family) -> None:
    speech = SpeechRequest("Hello.", reference_audio=b"RIFF")
    if card.modes and card.artifacts and all(card.modes.values()):
        with pytest.raises(InvalidArgument, match="needs reference_text"):
            requests.check_speech(card, speech)
    else:
        requests.check_speech(card, speech)


@pytest.mark.parametrize("card", CARDS, ids=NAMES)
def test_the_language_may_be_left_open(card: Family) -> None:
    for language in (None, "auto", "Auto", " AUTO ", *(card.languages or ())):
        requests.check_speech(card, SpeechRequest("Hello.", voice="Ada", language=language))


@pytest.mark.parametrize("card", CARDS, ids=NAMES)
def test_a_language_of_a_card_has_codes(card: Family) -> None:
    lacking = [name for name in card.languages or () if f"{name.title()} (" not in list_languages([name])]
    assert not lacking, "add their codes to `_CODES` of voice_clone/speech.py"


@pytest.mark.parametrize("card", [card for card in CARDS if card.languages is not None], ids=lambda card: card.name)
def test_a_language_is_refused(card: Family) -> None:
    with pytest.raises(Unsupported, match="'Klingon'"):
        requests.check_speech(card, SpeechRequest("Hello.", voice="Ada", language="Klingon"))


def tensors(card: Family) -> dict[str, Any]:
    """A prompt of any content."""
    return {name: np.zeros(1) for name in card.prompt}


DEFAULTS = {
    "cosyvoice3": {"do_sample": True, "temperature": 1.0, "top_k": 25, "top_p": 0.8},
    "fish_speech": {"do_sample": True, "temperature": 1.0, "top_k": 30, "top_p": 0.9},
    "voxcpm2": {"temperature": 1.0, "cfg_value": 2.0, "inference_timesteps": 10},
    "pocket_tts": {"do_sample": True, "steps": 1},  # the temperature is the checkpoint's
    "voxtral": {"guidance": 1.2},
}
"""Those of the official code. The parity tests give values of their own; the other families' stand in checkpoints."""


@pytest.mark.parametrize("card", CARDS, ids=NAMES)
def test_a_request_without_knobs_is_spoken_as_by_the_official_code(card: Family) -> None:
    own = card.knobs | {option.name: option.default for option in card.options}
    assert {name: value for name, value in own.items() if value is not None} == DEFAULTS.get(card.name, {})


@pytest.mark.parametrize("card", CARDS, ids=NAMES)
def test_a_family_takes_the_knobs_of_its_card(card: Family) -> None:
    everywhere = ("seed", "max_frames", "non_streaming_mode")
    least = {each.name: each.least for each in FIELDS if each.least is not None}
    for name in KNOBS:
        value = {"do_sample": False, "non_streaming_mode": True, **least}.get(name, 1)
        if name in card.knobs or name in everywhere:
            requests.check_plan(card, tensors(card), {name: value}, {})
        else:
            with pytest.raises(Unsupported, match=f"this model has no {name}; leave it out"):
                requests.check_plan(card, tensors(card), {name: value}, {})
    if card.appends:
        requests.check_plan(card, tensors(card), {"non_streaming_mode": False}, {})
    else:
        with pytest.raises(Unsupported, match="non_streaming_mode cannot be false"):
            requests.check_plan(card, tensors(card), {"non_streaming_mode": False}, {})


@pytest.mark.parametrize("card", CARDS, ids=NAMES)
def test_a_family_refuses_numbers_out_of_range(card: Family) -> None:
    for each in FIELDS:
        for value in outside(each) if each.name in (*card.knobs, "seed", "max_frames") else ():
            with pytest.raises(InvalidArgument, match=f"{each.name} is {value}; it must be"):
                requests.check_plan(card, tensors(card), {each.name: value}, {})


@pytest.mark.parametrize("card", CARDS, ids=NAMES)
def test_a_prompt_needs_the_tensors_of_its_card(card: Family) -> None:
    for name in card.prompt:
        with pytest.raises(InvalidArgument, match=f"prompt lacks {name}; the prompt stage makes it"):
            requests.check_plan(card, {key: value for key, value in tensors(card).items() if key != name}, {}, {})


OPTIONS = [(card, option) for card in CARDS for option in card.options]


@pytest.mark.parametrize(("card", "option"), OPTIONS, ids=[f"{card.name}-{option.name}" for card, option in OPTIONS])
def test_an_option_is_of_its_type_and_in_its_range(card: Family, option: Option) -> None:
    right: list[Any] = {bool: [True, False], str: ["a word"], int: [option.least], float: [option.least]}[option.type]
    right = list(option.choices) or [1 if value is None else value for value in right]
    wrong: list[Any] = [{}, [1], None] if option.type is str else ["much", None, [1]]
    if option.least is not None and option.most is not None:
        right += [option.type(option.most)]
        wrong += [option.least - 1e-6, option.most + 1, float("nan"), float("inf")]
    wrong += ["other"] if option.choices else []
    wrong += [" ... "] if option.words else []
    for value in right:
        requests.check_options(card, {option.name: option.type(value)})
    for value in wrong:
        with pytest.raises(InvalidArgument, match=f"options.{option.name} is "):
            requests.check_options(card, {option.name: value})


@pytest.mark.parametrize("card", CARDS, ids=NAMES)
def test_an_option_that_a_card_lacks_is_refused_with_those_that_it_has(card: Family) -> None:
    there = ", ".join(sorted(option.name for option in card.options)) or "none"
    with pytest.raises(InvalidArgument, match=f"'twang' is unknown; this model has {there}"):
        requests.check_options(card, {"twang": 1})
