"""The bounds of JSON that are checked before it is parsed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from voice_clone_gateway.http.errors import HTTPFailure
from voice_clone_gateway.http.json_bounds import (
    MAX_ALL_FIELDS,
    MAX_DEPTH,
    MAX_ESCAPES,
    MAX_FIELDS,
    MAX_NAME,
    MAX_STRINGS,
    MAX_VALUES,
    JsonBounds,
)


def refusal(text: bytes, size: int) -> str | None:
    """What the bounds say of a text that comes in pieces of this size."""
    bounds = JsonBounds()
    try:
        for begin in range(0, len(text), size):
            bounds.feed(text[begin : begin + size])
    except HTTPFailure as failure:
        assert failure.status_code == 400
        return str(failure.detail)
    return None


def nested(depth: int) -> Any:
    return {"a": [nested(depth - 2)]} if depth > 1 else {} if depth else 0


def value(rng: random.Random, depth: int) -> Any:
    """A JSON value whose strings are full of structure."""
    text = "".join(rng.choice('"\\{}[],:aé\n') for _ in range(rng.randrange(8)))
    if depth == 0 or rng.random() < 0.4:
        return rng.choice([text, 1, -2.5e3, None, True])
    if rng.random() < 0.5:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {f"{text}{index}": value(rng, depth - 1) for index in range(rng.randrange(4))}


@pytest.mark.parametrize("ascii", [True, False])
def test_what_is_within_bounds_passes_in_any_pieces(ascii: bool) -> None:
    rng = random.Random(7)
    for _ in range(500):
        text = json.dumps(value(rng, 6), ensure_ascii=ascii, indent=rng.choice([None, 1])).encode()
        assert refusal(text, rng.randint(1, 9)) is None and refusal(text, 1 << 20) is None


def objects(count: int) -> Any:
    """Objects with so many fields in all."""
    return [{f"f{index}": 1 for index in range(128)}] * (count // 128) + [{"x": 1}] * (count % 128)


LIMITS = [
    ("fields of an object", lambda n: {f"f{index}": [0, "a:b,{"] for index in range(n)}, MAX_FIELDS),
    ("fields in all", objects, MAX_ALL_FIELDS),
    ("values", lambda n: {"x": [0] * n}, MAX_VALUES),
    ("levels", nested, MAX_DEPTH),
    ("backslashes", lambda n: {"x": "\n" * n}, MAX_ESCAPES),
    ("a name", lambda n: {"x": 1, "n" * n: {"y": "z" * 5000}}, MAX_NAME),
]


@pytest.mark.parametrize(("make", "most"), [entry[1:] for entry in LIMITS], ids=[entry[0] for entry in LIMITS])
@pytest.mark.parametrize("size", [3, 1 << 20])
def test_the_bounds_are_exact(make: Any, most: int, size: int) -> None:
    assert refusal(json.dumps(make(most)).encode(), size) is None
    assert refusal(json.dumps(make(most + 1)).encode(), size) is not None


@pytest.mark.parametrize("size", [3, 1 << 20])
def test_strings_without_anything_between_them_are_counted(size: int) -> None:
    assert refusal(b'""' * MAX_STRINGS, size) is None
    assert refusal(b'""' * (MAX_STRINGS + 1), size) is not None


@pytest.mark.parametrize("text", [b"]]]}}}", b'"\\', b'{"a": "b', b":::", b'\\"', b"\xff\x00", b""])
@pytest.mark.parametrize("size", [1, 100])
def test_what_is_no_json_does_no_harm(text: bytes, size: int) -> None:
    assert refusal(text, size) is None
