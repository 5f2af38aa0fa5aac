"""Divides marked-up text into whole tags and the text between them, also while it is still being written.

A parser that gets whole tags of bounded length has nothing to hold back, and no document makes it slow.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

MOST_TAG = 1024
"""Characters of a tag, and of any other thing between `<` and `>`."""
MOST_TAGS = 2000
"""Of a text, with the other such things."""
MOST_BEFORE = 4096
"""Characters of a text, up to the end of the `<speak` by which it is recognised. A caller may write them one by one."""

_TAG = re.compile(r"<[^<>\"']*(?:(?:\"[^<\"]*\"|'[^<']*')[^<>\"']*)*>")
_OTHERS = {"<!--": "-->", "<![CDATA[": "]]>", "<?": "?>"}  # by their beginnings, how they end
_CUT_ENTITY = re.compile(r"&[^;<&]{0,11}\Z")


class MarkupError(ValueError):
    """A text is no SSML, or has too much of something.

    Args:
        problem: what is wrong.
        line, column: where, from 1.
    """

    def __init__(self, problem: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {problem}")


class Part(NamedTuple):
    """A whole tag, or text before the next one."""

    kind: Literal["tag", "text", "cdata", "silent"]
    """Silent: a comment or an instruction."""
    raw: str
    start: int
    """Its position in the whole text, in characters."""


class TagScanner:
    """The parts of one text, which has at most `most` tags."""

    def __init__(self, most: int = MOST_TAGS) -> None:
        self._most = most
        self._text = ""  # not yet divided
        self._tags = 0
        self._offset = 0  # its position in the whole text
        self._line, self._column = 1, 1  # of its beginning

    def feed(self, text: str, final: bool = False) -> list[Part]:
        """Add to the text; returns the parts that are certain now.

        A text between two tags may come in several parts, of which none ends inside an entity.

        Raises:
            MarkupError: a tag is too long or has no end, there are too many, or there is a document type.
        """
        self._text += text
        found, at = list[Part](), 0
        while at < len(self._text):
            begin = self._text.find("<", at)
            if begin != at:
                end = self._end_of_text(at, begin, final)
                if end > at:
                    found.append(Part("text", self._text[at:end], self._offset + at))
                at = end
                if begin < 0:
                    break
            part = self._tag(at, final)
            if part is None:
                break
            self._tags += 1
            if self._tags > self._most:
                raise self.error(f"there are more than {self._most} tags; divide the text", at)
            found.append(part)
            at += len(part.raw)
        self._pass(at)
        return found

    def error(self, problem: str, at: int = 0) -> MarkupError:
        """An error at a position of the text that is not yet divided."""
        before = self._text[:at]
        lines = before.count("\n")
        column = len(before) - before.rfind("\n") if lines else self._column + at
        return MarkupError(problem, self._line + lines, column)

    def _end_of_text(self, at: int, begin: int, final: bool) -> int:
        if begin >= 0 or final:
            return begin if begin >= 0 else len(self._text)
        cut = _CUT_ENTITY.search(self._text, max(at, len(self._text) - 12))
        return cut.start() if cut else len(self._text)

    def _tag(self, at: int, final: bool) -> Part | None:
        """The part that begins at a position; None while its end is not there."""
        if self._text[at + 1 : at + 2] in ("!", "?", ""):
            return self._other(at, final)
        found = _TAG.match(self._text, at, at + MOST_TAG)
        if found is not None:
            return Part("tag", found[0], self._offset + at)
        return self._whole(at, self._text[at : at + MOST_TAG + 1], -1, "tag", final)

    def _other(self, at: int, final: bool) -> Part | None:
        """A comment, an instruction or a section of characters."""
        window = self._text[at : at + MOST_TAG + 1]
        if window.startswith("<!D"):
            raise self.error("a DOCTYPE has no place here; leave it out", at)
        for begin, end in _OTHERS.items():
            if window.startswith(begin):
                to = window.find(end, len(begin))
                kind: Literal["cdata", "silent"] = "cdata" if begin == "<![CDATA[" else "silent"
                return self._whole(at, window, to + len(end) if to >= 0 else -1, kind, final)
        if not final and any(begin.startswith(window) for begin in _OTHERS):
            return None
        return self._whole(at, window, window.find(">") + 1 or -1, "tag", final)  # which the parser refuses

    def _whole(
        self, at: int, window: str, length: int, kind: Literal["tag", "cdata", "silent"], final: bool
    ) -> Part | None:
        if 0 <= length <= MOST_TAG:
            return Part(kind, window[:length], self._offset + at)
        if len(window) > MOST_TAG:
            raise self.error(f"this has no end within {MOST_TAG} characters", at)
        if final:
            raise self.error("this has no end", at)
        return None

    def _pass(self, count: int) -> None:
        passed, self._text = self._text[:count], self._text[count:]
        self._offset += count
        if lines := passed.count("\n"):
            self._line, self._column = self._line + lines, 1
        self._column += count - (passed.rfind("\n") + 1)


def is_ssml(text: str, final: bool = False) -> bool | None:
    """Whether a text begins as SSML does, with `<speak` behind white space, an XML declaration and comments; None
    while that is not certain."""
    final = final or len(text) > MOST_BEFORE
    rest = text[:MOST_BEFORE].lstrip("\ufeff \t\r\n")
    ends = {"<?xml": "?>", "<!--": "-->"}
    while begin := next((begin for begin, end in ends.items() if rest.startswith(begin) and end in rest), ""):
        rest = rest[rest.index(ends[begin]) + len(ends[begin]) :].lstrip()
    if not final and any(rest.startswith(begin) for begin in ends) and len(rest) <= MOST_TAG:
        return None
    if not final and len(rest) < 7 and any(begin.startswith(rest) for begin in ("<speak", *ends)):
        return None
    return re.match(r"<speak[\s/>]", rest) is not None
