"""The part of a text that a stage has not decided about: words in one style, without a silence between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from .pieces import Mark, Piece, Style, Words


class Change(NamedTuple):
    """Characters of the held text, from `begin` to `end`, and what is spoken in their place."""

    begin: int
    end: int
    text: str


class Stage(ABC):
    """Replaces words by others, in a text that may come in increments.

    What it decides about a piece of text must not depend on the increments: it holds back what further text could
    change.
    """

    def __init__(self) -> None:
        self._held = deque[Words | Mark]()
        self._length = 0  # characters in them
        self._style = Style()  # theirs
        self.before = ""  # the character before the held text

    def feed(self, pieces: Iterable[Piece], final: bool = False) -> list[Piece]:
        """Add to the text; returns the pieces that are certain now."""
        out: list[Piece] = []
        for piece in pieces:
            same = isinstance(piece, Words) and not piece.fixed and piece.style == self._style
            if not same and not isinstance(piece, Mark):
                out += self._decide(final=True)
                self.before = ""
            if isinstance(piece, Mark) or (isinstance(piece, Words) and not piece.fixed):
                self._hold(piece)
            else:
                out.append(piece)
        return out + self._decide(final)

    @property
    def warnings(self) -> list[str]:
        """Sentences: what it does not do."""
        return []

    @abstractmethod
    def changes(self, text: str, style: Style, final: bool) -> tuple[list[Change], int]:
        """The changes in the held text, in their order, and up to where it is decided.

        Args:
            text: that is held.
            style: of all of it.
            final: nothing follows it.
        """

    def _hold(self, piece: Words | Mark) -> None:
        self._held.append(piece)
        if isinstance(piece, Words):
            self._style = piece.style
            self._length += len(piece.text)

    def _decide(self, final: bool) -> list[Piece]:
        text = "".join(piece.text for piece in self._held if isinstance(piece, Words))
        changes, settled = self.changes(text, self._style, final) if text else ([], 0)
        out, at = list[Piece](), 0
        for change in changes:
            out += self._cut(change.begin - at)
            replaced = self._cut(change.end - change.begin)
            words = [piece for piece in replaced if isinstance(piece, Words)]
            out += [piece for piece in replaced if isinstance(piece, Mark)]
            out.append(Words(change.text, words[0].start, words[-1].end, self._style, fixed=True))
            at = change.end
        out += self._cut(settled - at)
        self.before = text[settled - 1] if settled else self.before
        if final or not self._length:
            out += self._held  # marks
            self._held.clear()
        return out

    def _cut(self, count: int) -> list[Piece]:
        """Take characters from the beginning of the held text, with the marks before their last one."""
        taken: list[Piece] = []
        while count:
            first = self._held.popleft()
            if isinstance(first, Words):
                if len(first.text) > count:
                    first, rest = _divided(first, count)
                    self._held.appendleft(rest)
                self._length -= len(first.text)
                count -= len(first.text)
            taken.append(first)
        return taken


def _divided(words: Words, count: int) -> tuple[Words, Words]:
    """The first characters, and the others."""
    text, start, end, style, fixed = words
    if not words.written:  # all of it stands for all that is written
        return Words(text[:count], start, end, style, fixed), Words(text[count:], start, end, style, fixed)
    middle = start + count
    return Words(text[:count], start, middle, style, fixed), Words(text[count:], middle, end, style, fixed)
