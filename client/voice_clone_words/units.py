"""What has a time of its own in a text."""

from __future__ import annotations

from typing import NamedTuple

import regex

_WIDE = r"\p{Han}\p{Hiragana}\p{Katakana}ー々〆"
_MARKS = r"\u3001-\u3004\u3008-\u3020\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"  # of Chinese and Japanese
_PIECE = regex.compile(rf"[{_WIDE}]|[{_MARKS}]|[^\s\x1c-\x1f{_WIDE}{_MARKS}]+")
_SPOKEN = regex.compile(r"[\p{L}\p{N}\p{Sc}&%@#+=]")
_LONG = regex.compile(r"[ー々]")  # marks that belong to the character before
_OPENING = regex.compile(r"[\p{Ps}\p{Pi}¿¡\"'„‚]+")


class Unit(NamedTuple):
    """A word of the caller's text: what white space separates, or a character of Chinese or Japanese."""

    text: str
    """With its punctuation, as it is written."""
    start: int
    """Begin of the span [start, end) in the text, in code points."""
    end: int


def units_of(text: str) -> list[Unit]:
    """The units of a text, in order; they do not overlap.

    Punctuation and symbols belong to the unit before, opening marks to the unit after. A text without a letter, a digit
    or a sign that is read aloud is one unit; a blank text has none.
    """
    spans: list[list[int]] = []
    waiting: int | None = None  # where marks begin that belong to the next unit
    for found in _PIECE.finditer(text):
        piece, (start, end) = found[0], found.span()
        if _SPOKEN.search(piece) and not (spans and _LONG.fullmatch(piece) and spans[-1][1] == start):
            spans.append([start if waiting is None else waiting, end])
            waiting = None
        elif waiting is None and spans and not _OPENING.fullmatch(piece):
            spans[-1][1] = end
        elif waiting is None:
            waiting = start
    if waiting is not None:
        if spans:
            spans[-1][1] = len(text.rstrip())
        else:
            spans.append([waiting, len(text.rstrip())])
    return [Unit(text[start:end], start, end) for start, end in spans]
