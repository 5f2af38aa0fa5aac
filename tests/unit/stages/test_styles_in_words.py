"""Which style a speech asks for, and which words a model may follow in its place."""

from __future__ import annotations

import pytest

from voice_clone.errors import InvalidArgument
from voice_clone.speech import SpeechRequest
from voice_clone.stages.requests import in_words


@pytest.mark.parametrize(
    ("style", "asked", "words"),
    [
        (None, None, None),
        ("happy", "happy", None),
        ("happy,neutral", "happy,neutral", None),
        ("Happy, instructions", "Happy,neutral", "Happy"),
        ("happy,glad,INSTRUCTIONS", "happy,glad,neutral", "happy"),
        ("neutral,instructions", "neutral,neutral", None),
    ],
)
def test_the_last_of_the_list(style: str | None, asked: str | None, words: str | None) -> None:
    speech, found = in_words(SpeechRequest(text="A", voice="Ada", style=style))
    assert (speech.style, found) == (asked, words)


@pytest.mark.parametrize("style", ["instructions", ",instructions", " , ,Instructions", ",happy,instructions"])
def test_instructions_are_no_style(style: str) -> None:
    with pytest.raises(InvalidArgument, match="happy,instructions"):
        in_words(SpeechRequest(text="A", voice="Ada", style=style))
