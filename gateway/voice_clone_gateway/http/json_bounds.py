"""JSON of callers: parsed within bounds that are checked first.

A parser and a validator take time for each value, and nothing else runs meanwhile. So a text with more values than any
request needs is refused by its brackets, commas and colons alone. The bounds and the parser read the same characters:
the text is UTF-8, in which the bytes of these signs stand for nothing else.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

from .encoding import decoded
from .errors import HTTPFailure

MAX_FIELDS = 128
"""Of one object."""
MAX_ALL_FIELDS = 8192
"""Of all objects."""
MAX_VALUES = 100_000
"""Of all lists."""
MAX_DEPTH = 32
MAX_NAME = 256
"""Bytes of a field's name, as they are written."""
MAX_STRINGS = MAX_VALUES + 2 * MAX_ALL_FIELDS
MAX_ESCAPES = 500_000
"""Backslashes; base64 whose slashes are escaped has 220,000 in 14 MB."""
_STRUCTURE = re.compile(rb"[\[\]{},:]")
_PIECE = 16 << 10  # bytes that are checked at once


async def parse_json(data: bytes, what: str) -> Any:
    """The value of a JSON text. Lets others run while it checks a long one.

    Raises:
        HTTPFailure: 400, it is not UTF-8, no JSON, beyond the bounds of `JsonBounds`, or an object has a field twice.
    """
    bounds = JsonBounds()
    for begin in range(0, len(data), _PIECE):
        bounds.feed(data[begin : begin + _PIECE])
        await asyncio.sleep(0)
    text = decoded(data, f"the {what}")
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise HTTPFailure(400, f"the {what} is no JSON: {error.msg}", "invalid_json") from None
    except ValueError:  # Python limits the digits of a whole number
        raise HTTPFailure(400, f"the {what} has a number of too many digits", "invalid_json") from None


async def parse_message(message: Mapping[str, Any]) -> Any:
    """The JSON value of a message of a WebSocket, as the ASGI server has it; see `parse_json`.

    Raises:
        HTTPFailure: it is no JSON in a text frame.
    """
    text = message.get("text")
    if text is None:
        raise HTTPFailure(400, "messages are JSON in text frames, not binary ones", "invalid_argument")
    return await parse_json(text.encode(), "message")


def _object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without a field that comes twice: parsers differ in which of the two counts."""
    made = dict(fields)
    if len(made) < len(fields):
        seen: set[str] = set()
        twice = next(name for name, _ in fields if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise HTTPFailure(400, f"the JSON has the field {twice!r} twice; give it once", "duplicate_field", param=twice)
    return made


class JsonBounds:
    """Counts the values of one JSON text, piece by piece. What is no JSON may pass; the parser refuses it."""

    def __init__(self) -> None:
        self._open: list[int] = []  # fields of each open object; -1 for a list
        self._fields = 0
        self._values = 0
        self._in_string = False
        self._escaped = False  # the piece before ended within a string, after a backslash
        self._string = 0  # bytes of the latest string
        self._strings = 0
        self._escapes = 0

    def feed(self, piece: bytes) -> None:
        """Count the values of the next bytes.

        Raises:
            HTTPFailure: 400, the text is beyond a bound.
        """
        self._escapes += piece.count(b"\\")
        if self._escapes > MAX_ESCAPES:
            raise _refusal(f"has more than {MAX_ESCAPES} backslashes")
        at, end = 0, len(piece)
        while at < end:
            if self._in_string:
                at = self._skip_string(piece, at)
                continue
            quote = piece.find(b'"', at)
            stop = end if quote < 0 else quote
            for token in _STRUCTURE.finditer(piece, at, stop):
                self._count(piece[token.start()])
            at = stop
            if quote >= 0:
                self._in_string, self._string, at = True, 0, quote + 1
                self._strings += 1
                if self._strings > MAX_STRINGS:
                    raise _refusal(f"has more than {MAX_STRINGS} strings")

    def _skip_string(self, piece: bytes, begin: int) -> int:
        """The position after the string's end, or the end of the piece."""
        at = begin
        if self._escaped:
            self._escaped, at = False, at + 1
        while True:
            quote = piece.find(b'"', at)
            stop = len(piece) if quote < 0 else quote
            written = piece[at:stop]
            odd = (len(written) - len(written.rstrip(b"\\"))) % 2 == 1
            if quote < 0:
                self._escaped = odd
                self._string += stop - begin
                return stop
            if not odd:
                self._in_string = False
                self._string += quote - begin
                return quote + 1
            at = quote + 1

    def _count(self, token: int) -> None:
        if token in b"{[":
            self._open.append(0 if token == ord("{") else -1)
            if len(self._open) > MAX_DEPTH:
                raise _refusal(f"has more than {MAX_DEPTH} levels")
            self._values += token == ord("[")
        elif token in b"}]":
            if self._open:
                self._open.pop()
        elif token == ord(","):
            self._values += not self._open or self._open[-1] < 0
        else:
            self._fields += 1
            if self._open and self._open[-1] >= 0:
                self._open[-1] += 1
                if self._open[-1] > MAX_FIELDS:
                    raise _refusal(f"has an object of more than {MAX_FIELDS} fields")
            if self._string > MAX_NAME:
                raise _refusal(f"has a field whose name is longer than {MAX_NAME} bytes")
        if self._fields > MAX_ALL_FIELDS:
            raise _refusal(f"has more than {MAX_ALL_FIELDS} fields")
        if self._values > MAX_VALUES:
            raise _refusal(f"has more than {MAX_VALUES} values")


def _refusal(what: str) -> HTTPFailure:
    return HTTPFailure(400, f"the JSON {what}; no request needs as many", "too_complex")
