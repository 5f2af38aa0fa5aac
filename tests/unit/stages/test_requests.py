"""What prompt and talker stages of all families refuse and grant."""

from __future__ import annotations

import numpy as np
import pytest

from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.speech import SpeechRequest
from voice_clone.stages import requests
from voice_clone.stages.requests import FrameBudget

BUDGET = FrameBudget(least=192, per_token=12, most=8192)
ROOM = 10**6


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
    assert BUDGET.limit(tokens, max_frames, room) == limit


def test_no_frame_at_all_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="max_frames is 0; it must be at least 1"):
        BUDGET.limit(1, 0, ROOM)


def test_a_speaker_embedding_is_refused() -> None:
    requests.refuse_speaker_embedding(SpeechRequest("Hello.", voice="Ada"))
    requests.refuse_speaker_embedding(SpeechRequest("Hello.", voice="Ada", x_vector_only=False))
    for speech in (
        SpeechRequest("Hello.", voice="Ada", x_vector_only=True),
        SpeechRequest("Hello.", speaker_embedding=np.ones(8, np.float32)),
    ):
        with pytest.raises(Unsupported, match="no speaker embedding"):
            requests.refuse_speaker_embedding(speech)


@pytest.mark.parametrize("language", [None, "auto", "Auto", " AUTO "])
def test_the_language_may_be_left_open(language: str | None) -> None:
    requests.refuse_language(SpeechRequest("Hello.", voice="Ada", language=language))


def test_a_language_is_refused() -> None:
    with pytest.raises(Unsupported, match="this model takes no language, got 'English'"):
        requests.refuse_language(SpeechRequest("Hello.", voice="Ada", language="English"))


def test_knobs_are_refused_only_if_they_are_given() -> None:
    requests.refuse_knobs({"seed": 1}, ["top_k", "top_p"])
    with pytest.raises(Unsupported, match="this model has no top_p; leave it out"):
        requests.refuse_knobs({"seed": 1, "top_p": 0.5}, ["top_k", "top_p"])
    for knobs in ({}, {"non_streaming_mode": True}):
        requests.refuse_streaming_text(knobs)
    with pytest.raises(Unsupported, match="non_streaming_mode cannot be false"):
        requests.refuse_streaming_text({"non_streaming_mode": False})


def test_a_prompt_needs_its_tensors() -> None:
    requests.check_tensors({"text_ids": np.zeros(1)}, ["text_ids"])
    with pytest.raises(InvalidArgument, match="prompt lacks codes; the prompt stage makes it"):
        requests.check_tensors({"text_ids": np.zeros(1)}, ["text_ids", "codes"])
