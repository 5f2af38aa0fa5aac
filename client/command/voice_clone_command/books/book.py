"""A book before it is spoken."""

from __future__ import annotations

from dataclasses import dataclass, field

from voice_clone_text.sentences import SPOKEN


@dataclass
class Chapter:
    """A part of a book with a title."""

    title: str
    paragraphs: list[str] = field(default_factory=list)
    """All that is spoken, the title, too, where the text has it."""
    headings: int = 0
    """How many of the paragraphs, from the first one on, are headings."""


@dataclass(frozen=True)
class Book:
    """The text of a book, and what is known of it."""

    chapters: list[Chapter]
    title: str = ""
    author: str = ""
    language: str = ""
    cover: bytes | None = None
    """A JPEG or PNG file."""
    warnings: tuple[str, ...] = ()
    """Sentences: what is not spoken."""


class ChapterList:
    """Collects chapters. One without a text of its own is spoken at the beginning of the next one."""

    def __init__(self) -> None:
        self._chapters = [Chapter("")]

    def begin(self, title: str) -> None:
        """What is added from now on belongs to a new chapter. A title of marks alone begins none."""
        if title and SPOKEN.search(title) is None:
            return
        last = self._chapters[-1]
        if len(last.paragraphs) == last.headings:
            last.title = title
        else:
            self._chapters.append(Chapter(title))

    def add(self, paragraph: str, heading: bool = False) -> None:
        """The next paragraph; one without a letter or digit is left out."""
        if SPOKEN.search(paragraph) is not None:
            last = self._chapters[-1]
            last.headings += heading and len(last.paragraphs) == last.headings
            last.paragraphs.append(paragraph)

    def all(self) -> list[Chapter]:
        return [chapter for chapter in self._chapters if chapter.paragraphs]
