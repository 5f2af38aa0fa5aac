"""What callers send as JSON."""

from __future__ import annotations

import pytest

from voice_clone.errors import InvalidArgument
from voice_clone.speech import parse_object


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
