"""A text that is written while it is spoken, in the parts that the server speaks one after another.

In one piece a model speaks well only so many characters (`part_characters`, which it says with its first answer): then
it speaks faster and faster, and may end before its text does. So a part ends with the first sentence that ends behind a
third of that length, and a sentence that would go beyond all of it is cut. The text alone decides this, not the time at
which it comes. Up to the third all text goes to its part at once; behind it, text waits until it is certain that no
sentence ends before it, mostly for a word.

A part whose model has ended too early is followed by one that begins with the first sentence that was not read.
"""

from __future__ import annotations

import secrets
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .sentences import SPOKEN, SentenceSplitter, WholeCharacters, fitting, size

USUAL = 600  # characters, of a server that does not say how many its model speaks well
LEAST = 180  # a model that speaks fewer gets so many
WIDE = 3  # for how many a wide character counts, such as one of Chinese
MOST_ATTEMPTS = 3  # of a part whose model ends within its first sentence


@dataclass(eq=False)
class Part:
    """A part of a text: one speech of the server."""

    start: int
    """Its position in the whole text, in characters."""
    text: str = ""
    """Grows while it is written."""
    ended: bool = False
    attempt: int = 1
    index: int = 0
    """0, 1, 2, ... in the order in which parts begin."""
    seed: int | None = None
    """None: the server chooses one."""
    max_frames: int | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    """Under which the server knows it."""

    def renew(self) -> None:
        self.id = secrets.token_hex(16)


class WrittenText:
    """A text while it is written, cut into parts. Not thread-safe.

    Args:
        changed: called when there may be more of a part, or another part.
        at_once: the first part is there before its text; else it begins with the first letter or digit, as others do.
        longest: characters of a part, if that is less than the model speaks well.
    """

    def __init__(
        self, changed: Callable[[], None] = lambda: None, *, at_once: bool = True, longest: int | None = None
    ) -> None:
        self.changed = changed
        self._longest = longest
        self._soft = LEAST // 3  # the size behind which a part ends with its sentence
        self._splitter: SentenceSplitter | None = None  # None until the server has said what the model speaks well
        self._base = 0  # where the text of the splitter begins
        self._later: list[tuple[str, bool]] = []  # texts and flushes that wait for the splitter
        self._whole = WholeCharacters()
        self._held = ""  # in no part yet, because a part may end before it
        self._place = 0  # of what is held, in the whole text
        self._before = ""  # without a letter or digit, in front of what is held: no part has begun
        self._part: Part | None = None  # that is written
        self._parts: deque[Part] = deque()  # that have not begun
        self._ended = False
        self.continued = 0
        """How many parts have gone on with what another left unread."""
        if at_once:
            self._open(0, "")

    def write(self, text: str) -> None:
        """More of it."""
        self._add(self._whole.feed(text, False), False)

    def end(self) -> None:
        self._ended = True
        self.flush()

    def flush(self) -> None:
        self._add(self._whole.feed("", True), True)

    def learn(self, part_characters: int | None) -> None:
        """How many characters the model speaks well; None: the server does not say so."""
        if self._splitter is None:
            most = max(LEAST, min(part_characters or USUAL, self._longest or sys.maxsize))
            self._soft = most // 3
            self._splitter = SentenceSplitter(max_characters=most - self._soft, wide=WIDE)
            self._base = self._place - len(self._written)
            self._splitter.feed(self._written)
            later, self._later = self._later, []
            for text, flush in later:
                self._split(self._splitter, text, flush)
            self.changed()

    @property
    def waiting(self) -> bool:
        """Whether a part is there that has not begun."""
        return bool(self._parts)

    @property
    def over(self) -> bool:
        """Whether no further part will begin, unless one goes on with what another has left."""
        return self._ended and not self._parts and not self._later

    def begin(self) -> Part | None:
        """The part that begins now, if one is there."""
        return self._parts.popleft() if self._parts else None

    def go_on(self, part: Part, characters: int) -> bool:
        """A model has ended a part after reading so many characters: begin another with what it has not read.

        Returns: false if that was tried often enough.
        """
        sentences = SentenceSplitter(max_characters=USUAL, wide=WIDE).feed(part.text, final=True)
        begin = next((sentence.start for sentence in sentences if sentence.end > characters), len(part.text))
        attempt = 1 if part.text[:begin].strip() else part.attempt + 1
        if attempt > MOST_ATTEMPTS:
            return False
        rest, written = part.text[begin:], part is self._part
        further = Part(part.start + begin, rest, part.ended, attempt) if SPOKEN.search(rest) else None
        if further is not None:
            self._parts.appendleft(further)
        if written:
            self._part, self._before = further, "" if further else rest.lstrip()
            part.ended = True
        self.continued += further is not None
        return True

    def _add(self, text: str, flush: bool) -> None:
        if self._splitter is not None:
            self._split(self._splitter, text, flush)
        else:
            self._later.append((text, flush))
            waiting = "".join(each for each, _ in self._later)
            # As much as is in the first part whatever the server says; a sentence that fills it may end the part.
            room = self._soft - 1 - size(self._written, WIDE)
            if flush and size(waiting, WIDE) <= room:
                self._held, self._later = waiting, []
                self._give(len(waiting))
                self._end_part()
            elif len(self._later) == 1:
                self._held = text
                self._give(fitting(text, room, WIDE))
                self._later, self._held = [(self._held, flush)] if self._held or flush else [], ""
        self.changed()

    def _split(self, splitter: SentenceSplitter, text: str, flush: bool) -> None:
        """Give to parts what can be given."""
        self._held += text
        for sentence in splitter.feed(text, flush):
            end = self._base + sentence.end - self._place
            if end >= 0 and size((self._written + self._held[:end]).lstrip(), WIDE) >= self._soft:
                self._give(end)
                self._end_part()
        if flush:
            self._give(len(self._held))
            self._end_part()
        else:
            due = fitting(self._held, self._soft - size(self._written, WIDE), WIDE)
            self._give(max(due, self._base + splitter.settled - self._place))

    @property
    def _written(self) -> str:
        return self._before if self._part is None else self._part.text

    def _give(self, count: int) -> None:
        """Give so many characters to the part that is written; one begins with its first letter or digit."""
        count = max(0, count)
        text, self._held = self._held[:count], self._held[count:]
        self._place += len(text)
        if self._part is not None:
            self._part.text += text
            return
        self._before = (self._before + text).lstrip()
        if SPOKEN.search(self._before):
            self._open(self._place - len(self._before), self._before)
            self._before = ""

    def _open(self, start: int, text: str) -> None:
        self._part = Part(start, text)
        self._parts.append(self._part)

    def _end_part(self) -> None:
        if self._part is not None:
            self._part.ended = True
        self._part, self._before = None, ""
