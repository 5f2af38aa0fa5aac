"""Bounds of a JSON text that are checked before it is parsed, while it arrives.

A parser and a validator take time for each value, and nothing else runs meanwhile. So a text with more values than any
request needs is refused by its brackets, commas and colons alone.
"""

from __future__ import annotations

import re

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
_STRUCTURE = re.compile(rb"[\[\]{},:]")
_ESCAPES = re.compile(rb"\\+$")


class JsonBounds:
    """Counts the values of one JSON text, piece by piece. What is no JSON may pass; the parser refuses it."""

    def __init__(self) -> None:
        self._open: list[int] = []  # fields of each open object; -1 for a list
        self._fields = 0
        self._values = 0
        self._in_string = False
        self._escaped = False  # the piece before ended within a string, after a backslash
        self._string = 0  # bytes of the latest string

    def feed(self, piece: bytes) -> None:
        """Count the values of the next bytes.

        Raises:
            HTTPFailure: 400, the text is beyond a bound.
        """
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

    def _skip_string(self, piece: bytes, begin: int) -> int:
        """The position after the string's end, or the end of the piece."""
        at = begin
        if self._escaped:
            self._escaped, at = False, at + 1
        while True:
            quote = piece.find(b'"', at)
            stop = len(piece) if quote < 0 else quote
            backslashes = _ESCAPES.search(piece, at, stop)
            odd = backslashes is not None and (backslashes.end() - backslashes.start()) % 2 == 1
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
    # The rest of the body is not read, so the connection ends.
    return HTTPFailure(
        400, f"the JSON {what}; no request needs as many", "too_complex", headers={"Connection": "close"}
    )
