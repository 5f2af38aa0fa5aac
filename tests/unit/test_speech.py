"""The rules of a request for speech, of all families, and what callers send as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from voice_clone.errors import InvalidArgument
from voice_clone.speech import SpeechRequest, check_options, parse_object


def request(**given: Any) -> SpeechRequest:
    return SpeechRequest(**{"text": "Hello.", "voice": "Ada", **given})


EMBEDDING = np.ones(8, np.float32)
INLINE: dict[str, Any] = {"voice": None, "reference_audio": b"clip"}
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"text": ""}, "blank"),
    ({"text": "\n\t "}, "blank"),
    ({"text": "... ?!"}, "no letter or digit"),
    ({"text": "\u200b"}, "no letter or digit"),
    ({"text": "\N{GRINNING FACE}"}, "no letter or digit"),
    ({"voice": None}, "exactly one"),
    ({"reference_audio": b"clip"}, "exactly one"),
    ({"speaker_embedding": EMBEDDING}, "exactly one"),
    ({"voice_prompt": b"bundle"}, "exactly one"),
    ({"voice": None, "voice_prompt": b"bundle", "reference_text": "words"}, "their own transcript"),
    ({**INLINE, "speaker_embedding": EMBEDDING}, "exactly one"),
    ({"reference_text": "words"}, "their own transcript"),
    ({"voice": None, "speaker_embedding": EMBEDDING, "reference_text": "words"}, "reference_text"),
    ({**INLINE, "reference_text": " "}, "blank"),
    ({**INLINE, "reference_text": "words", "x_vector_only": True}, "x_vector_only"),
    ({**INLINE, "x_vector_only": False}, "transcript"),
    ({"voice": None, "speaker_embedding": EMBEDDING, "x_vector_only": False}, "x-vector"),
    ({"voice": None, "speaker_embedding": EMBEDDING * np.nan}, "NaN"),
]


@pytest.mark.parametrize(("given", "text"), CONTRADICTIONS)
def test_a_contradiction_is_refused(given: dict[str, Any], text: str) -> None:  # B11
    with pytest.raises(InvalidArgument, match=text):
        request(**given)


@pytest.mark.parametrize("text", ["A", "42", "100 %", "€", "你好", "Да!", "...well", "١٢"])
def test_a_text_with_a_word_is_accepted(text: str) -> None:
    assert request(text=text).text == text


def test_an_owner_is_text() -> None:
    assert SpeechRequest(text="Hello.", voice="Ada", owner="alice").owner == "alice"
    with pytest.raises(InvalidArgument, match="owner"):
        SpeechRequest(text="Hello.", voice="Ada", owner=5)  # type: ignore[arg-type]


def test_a_family_without_options() -> None:
    check_options({}, {})
    with pytest.raises(InvalidArgument, match="this model has none"):
        check_options({"anything": 1}, {})


def test_objects() -> None:
    assert parse_object("options", '{"wait": true, "timeout": 1.5}') == {"wait": True, "timeout": 1.5}
    assert parse_object("options", r'{"a": "\u00e9 \ud83d\ude00"}') == {"a": "é 😀"}
    assert parse_object("options", None) == parse_object("options", "") == parse_object("options", "{}") == {}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        "3",
        "null",
        '"a"',
        "[" * 100_000,
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        "9" * 9999,
        r'{"a": "\ud800"}',
        r'{"\udfff": 1}',
        r'{"a": [{"b": "x\ud83dy"}]}',
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="options must be a JSON object"):
        parse_object("options", text)
