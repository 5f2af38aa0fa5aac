"""What a text becomes before it is spoken: words, silences and marks; and the plan that they make together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple


class Style(NamedTuple):
    """How words are spoken. What differs in it is spoken by speeches of their own."""

    voice: str | None = None
    """As the text names it; None: that of the request."""
    language: str | None = None
    """A code such as `en-US`, or as the request names it."""
    rate: float = 1.0
    """Factor of the tempo."""
    gain: float = 1.0
    """Factor of the samples."""
    clip: str | None = None
    """The style of the voice, as the text names it; None: that of the request, unless the voice is of the text."""


class Words(NamedTuple):
    """A part of what is spoken."""

    text: str
    start: int
    """Where it is written: a position in the whole text, in characters (code points)."""
    end: int
    style: Style
    fixed: bool = False
    """Whether it was put in place of what is written, and is not read again."""

    @property
    def written(self) -> bool:
        """Whether each of its characters is one of the text."""
        return not self.fixed and len(self.text) == self.end - self.start


class Silence(NamedTuple):
    """A pause, and where it is written."""

    seconds: float
    start: int
    end: int


class Mark(NamedTuple):
    """A named place, which changes no sound."""

    name: str
    start: int
    """Where it is written."""


Piece = Words | Silence | Mark


class Replaced(NamedTuple):
    """A part of a span that is not spoken as it is written."""

    spoken: tuple[int, int]
    """Begin and end in the text of the span."""
    written: tuple[int, int]
    """Begin and end in the whole text."""


class Span(NamedTuple):
    """What is spoken at once, in one style."""

    text: str
    start: int
    """Where it is written."""
    end: int
    style: Style
    replaced: tuple[Replaced, ...] = ()
    """Each other character is one of the text."""

    def written(self, start: int, end: int) -> tuple[int, int]:
        """Where a part [start, end) of its text is written: of what was replaced, all of it. Where tags are between its
        words, it is where all of it is written."""
        found, at, place = [], 0, self.start
        for spoken, written in (*self.replaced, Replaced((len(self.text),) * 2, (self.end,) * 2)):
            if place + spoken[0] - at != written[0]:
                return self.start, self.end
            first, last = max(start, at), min(end, spoken[0])
            if first < last:
                found += [place + first - at, place + last - at]
            if max(start, spoken[0]) < min(end, spoken[1]):
                found += written
            at, place = spoken[1], written[1]
        return (min(found), max(found)) if found else (self.start, self.end)


class MarkPlace(NamedTuple):
    """Where a mark is in a plan."""

    name: str
    item: int
    """The item that it is in, or before; the number of items at the end."""
    character: int
    """Characters of the item before it."""


@dataclass(frozen=True)
class Plan:
    """A whole text: spans and silences in their order."""

    items: tuple[Span | Silence, ...]
    marks: tuple[MarkPlace, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def spans(self) -> list[Span]:
        return [item for item in self.items if isinstance(item, Span)]


@dataclass
class Joiner:
    """Joins pieces to the items of a plan."""

    items: list[Span | Silence] = field(default_factory=list)
    marks: list[MarkPlace] = field(default_factory=list)
    _open: list[Words] = field(default_factory=list)

    def add(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, Words):
                if self._open and self._open[0].style != piece.style:
                    self._close()
                self._open.append(piece)
            elif isinstance(piece, Mark):
                at = sum(len(words.text) for words in self._open)
                self.marks.append(MarkPlace(piece.name, len(self.items), at))
            else:
                self._close()
                self.items.append(piece)

    def plan(self, warnings: Iterable[str] = ()) -> Plan:
        self._close()
        return Plan(tuple(self.items), tuple(self.marks), tuple(warnings))

    def _close(self) -> None:
        if self._open:
            text = "".join(words.text for words in self._open)
            first, last = self._open[0], self._open[-1]
            self.items.append(Span(text, first.start, last.end, first.style, tuple(_replaced(self._open))))
            self._open.clear()


def _replaced(parts: Iterable[Words]) -> Iterator[Replaced]:
    at = 0
    for (written, place), group in groupby(parts, key=lambda words: (is_so := words.written, is_so or words[1:3])):
        end = at + sum(len(words.text) for words in group)
        if not written:
            yield Replaced((at, end), place)
        at = end
