"""The sentences of a book, and what names the sound of each.

Each paragraph is read alone, and the seed of a sentence does not depend on its place. So a paragraph that is changed,
removed or put in front leaves the names of all other sentences as they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from voice_clone_client.errors import InvalidArgument
from voice_clone_client.long_text.plan import content_seed
from voice_clone_text.pieces import Plan, Silence
from voice_clone_text.planner import Settings, plan
from voice_clone_text.sentences import MIN_CHARACTERS, SPOKEN, SentenceSplitter
from voice_clone_text.sequence import Planned, Sequence, in_sequence

from .book import Book, Chapter

BEFORE, PARAGRAPH, AFTER = 0.5, 0.5, 1.5
"""Seconds of silence at the beginning of a chapter, between its paragraphs, and at its end."""
ATTEMPTS = 3
"""Seeds of a sentence, for a model that misses its end."""


@dataclass(frozen=True)
class Sentence:
    """What is spoken at once."""

    text: str
    seeds: tuple[int, ...]
    address: str
    """Names its sound."""


@dataclass(frozen=True)
class PlannedChapter:
    """A chapter: parts without a silence inside, and the sentences of each."""

    title: str
    sequence: Sequence
    parts: tuple[tuple[Sentence, ...], ...]

    @property
    def all(self) -> list[Sentence]:
        return [sentence for part in self.parts for sentence in part]


class Planner:
    """Plans a book."""

    def __init__(
        self,
        settings: Settings,
        max_characters: int,
        pauses: tuple[float, float, float],
        seed: int,
        attempts: int,
        address: Callable[[str, tuple[int, ...]], str],
    ) -> None:
        self._settings, self._max_characters, self._pauses = settings, max_characters, pauses
        self._seed, self._attempts, self._address = seed, attempts, address
        self._seen = Counter[str]()
        self.warnings = dict[str, None]()
        """Sentences: what of the text has no effect."""

    def plan(self, book: Book) -> list[PlannedChapter]:
        """The chapters of a book that have something to speak.

        Raises:
            InvalidArgument: there is too much silence in one place.
        """
        return [self._chapter(chapter) for chapter in book.chapters]

    def _chapter(self, chapter: Chapter) -> PlannedChapter:
        before, between, after = self._pauses
        plans = [Planned(plan(text, self._settings), pause=between) for text in chapter.paragraphs]
        self.warnings |= dict.fromkeys(warning for each in plans for warning in each.plan.warnings)
        plans[-1] = plans[-1]._replace(pause=after)
        try:
            sequence = in_sequence([Planned(Plan((Silence(before, 0, 0),))), *plans])
        except ValueError as error:
            raise InvalidArgument(f"chapter {chapter.title!r}: {error}") from None
        parts = tuple(tuple(self._sentences(part.span.text)) for part in sequence.parts)
        return PlannedChapter(chapter.title, sequence, parts)

    def _sentences(self, text: str) -> Iterator[Sentence]:
        least = min(MIN_CHARACTERS, self._max_characters)
        for each in SentenceSplitter(min_characters=least, max_characters=self._max_characters).feed(text, final=True):
            if SPOKEN.search(each.text):
                before, self._seen[each.text] = self._seen[each.text], self._seen[each.text] + 1
                seeds = tuple(content_seed(self._seed, each.text, before, index) for index in range(self._attempts))
                yield Sentence(each.text, seeds, self._address(each.text, seeds))
