"""When the words of a speech are spoken: the server's model `aligner` gets its samples beside whoever reads them.

The samples go back to the server in pieces, one at a time, from a queue with a bound. So a speech does not wait for its
words, and no ensemble knows of them. Where the server has no aligner, refuses or is late, the words are an estimate.

A text that is written while it is spoken is aligned in the parts in which it is spoken. The samples of a part wait here
until all of its text was written, which is mostly long before they are heard.
"""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from voice_clone_text.sentences import SPOKEN, WholeCharacters
from voice_clone_words.estimate import estimate, guess
from voice_clone_words.loudness import Loudness
from voice_clone_words.units import Unit, units_of
from voice_clone_words.words import Word, heard_characters

from . import requests, responses
from .backends import Job, now
from .errors import Overloaded, VoiceCloneError
from .long_text.text import SentenceChunk
from .speeches.parts_reader import PartChunk
from .types import Chunk

if TYPE_CHECKING:
    from .servers.servers import Servers

C = TypeVar("C", bound=Chunk)
Written = Callable[[int, int], tuple[int, int]]
"""Where a part [start, end) of what is spoken is in the caller's text."""

LEAST_SENT = 0.16
"""Seconds of a piece, but for the last one: each costs the server a millisecond or so."""
MOST_WAITING = 60.0
"""Seconds of audio that wait to be sent; of more, the words are an estimate."""
ANSWER_SECONDS = 10.0
"""How long an answer of the aligner may take."""
END_SECONDS = 2.0
"""How long the end of a speech waits for its last words."""


@dataclass(eq=False)
class _Segment:
    """What is spoken at once: a sentence, or a part of a text that is being written."""

    text: str
    written: Written
    begin: int
    """Its first sample in the speech."""
    rate: int
    keep: Callable[[int], None]
    """Called with the bytes that wait from now on, fewer or more."""
    loudness: Loudness
    units: list[Unit]
    growing: bool = False
    """Whether its text may grow. Then it is not sent."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    length: int = 0
    waiting: list[NDArray[np.float32]] = field(default_factory=list)
    unsent: int = 0
    begun: bool = False
    ended: bool = False
    given_up: bool = False
    done: bool = False
    words: list[Word] = field(default_factory=list)
    reported: int = 0

    def spell(self, text: str, growing: bool) -> None:
        """This is its text so far. What was sent of another one is in vain."""
        if text != self.text:
            self.text, self.units = text, units_of(text)
            if self.begun:
                self.give_up()
        self.growing = growing

    def hear(self, samples: NDArray[np.float32], last: bool) -> None:
        self.loudness.feed(samples)
        self.length += len(samples)
        if len(samples) and not self.given_up and not self.ended:
            try:
                self.keep(samples.nbytes)
            except Exception:  # there is no room for them
                self.give_up()
            else:
                self.waiting.append(samples)
                self.unsent += len(samples)
                if self.unsent > MOST_WAITING * self.rate:
                    self.give_up()
        self.ended = self.ended or last

    @property
    def due(self) -> bool:
        """Whether there is something to do for it."""
        enough = not self.given_up and self.unsent >= LEAST_SENT * self.rate
        return not self.done and not self.growing and (self.ended or enough)

    def word(self, unit: Unit, start: int, end: int, confidence: float | None = None, estimated: bool = False) -> Word:
        """A word of the whole speech, of samples of this segment."""
        times = ((self.begin + start) / self.rate, (self.begin + end) / self.rate)
        return Word(unit.text, *times, self.written(unit.start, unit.end), confidence, estimated)

    def estimate(self) -> None:
        """No engine says when the words are spoken."""
        self.words, self.done = self._estimated(), True

    def _estimated(self) -> list[Word]:
        times = estimate(self.units, self.loudness.silent(), self.loudness.step, self.length)
        return [self.word(unit, *each, estimated=True) for unit, each in zip(self.units, times, strict=True)]

    def guessed(self, before: Word | None) -> list[Word]:
        """The words that are not known yet: an estimate or, while they are spoken, at the pace of those before.

        Args:
            before: the last word that is known.
        """
        known = len(self.words)
        if self.done or self.ended:
            return [] if self.done else self._estimated()[known:]
        begin = 0 if before is None or not known else round(before.end * self.rate) - self.begin
        pace = (before.span[1], before.end) if before else (0, 0.0)
        times = guess(self.units[known:], begin, self.rate, *pace)
        return [self.word(unit, *each, estimated=True) for unit, each in zip(self.units[known:], times, strict=True)]

    def taken(self) -> NDArray[np.float32]:
        """The samples that wait, which then wait no more."""
        samples: NDArray[np.float32] = np.concatenate([np.zeros(0, np.float32), *self.waiting])
        self.waiting.clear()
        self.unsent = 0
        self.keep(-samples.nbytes)
        return samples

    def give_up(self) -> None:
        """Send no more of it."""
        self.given_up = True
        self.taken()


class AsyncWordTimes:
    """The words of one speech, as far as they are known. No chunk waits for them; thread-safe. It asks the aligner in
    the background, as long as there is something to ask.

    Args:
        servers: with the aligner.
        text: of the caller.
        language: as the speech names it.
        keep: called with the bytes of audio that wait from now on, fewer or more; what it raises for more of them
            leaves the words of a sentence an estimate.
    """

    def __init__(
        self,
        servers: Servers,
        text: str,
        language: str | None = None,
        *,
        keep: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.text = text
        """Of the caller, as far as it was written."""
        self._whole = WholeCharacters()
        self._servers = servers
        self._language = language
        self._keep = keep
        self._lock = threading.RLock()
        self._segments: list[_Segment] = []
        self._next: tuple[str, Written] | None = None
        self._samples = 0
        self._read: list[tuple[float, int]] = []  # seconds of the speech, and how much text was read by then
        self._given_up = False
        self._reporting = 0  # the segment that `news` is at
        self._reported_until = 0.0  # the end of the last word that it reported, in seconds
        self._running = False
        self._job: Job[None] | None = None

    def write(self, text: str) -> None:
        """More of the text, before it is spoken."""
        self.text += self._whole.feed(text, False)

    @property
    def words(self) -> list[Word]:
        """All that are known, in order, as the caller wrote them. Several that are spoken in place of one are one."""
        with self._lock:
            return self._written([word for segment in self._segments for word in segment.words])

    def _written(self, words: Sequence[Word]) -> list[Word]:
        found: list[Word] = []
        for word in words:
            if found and found[-1].span == word.span:
                found[-1] = replace(found[-1], end=word.end)
            else:
                found.append(replace(word, text=self.text[slice(*word.span)]))
        return found

    def heard(self, seconds: float) -> str:
        """What of the text is heard when so much of the speech was played: up to the end of a word, with its
        punctuation. A word counts when more than half of it was played. Of words that are not known yet it guesses by
        the pace so far. Of a text that is written while it is spoken, it is no more than the model had read."""
        with self._lock:
            words = list[Word]()
            for segment in self._segments:
                words += segment.words
                words += segment.guessed(words[-1] if words else None)
            place = bisect_left(self._read, (seconds - 1e-6, 0))
            read = self._read[min(place, len(self._read) - 1)][1] if self._read else len(self.text)
        words = [word for word in words if not SPOKEN.search(self.text[read : word.span[1]])]
        return self.text[: min(read, heard_characters(words, seconds))]

    def took(self, chunk: C) -> C:
        """A chunk of the speech that is read, with the words that are known since the chunk before."""
        spoken = chunk.as_sentence() if isinstance(chunk, PartChunk) else chunk
        if isinstance(spoken, SentenceChunk):
            if spoken.first:
                self.begin(spoken.sentence.text, spoken.written)
            self._hear(spoken, spoken.last, spoken)
        else:
            if spoken.index == 0:
                self.begin(self.text)
            self._hear(spoken, spoken.final)
        return replace(chunk, words=self.news())

    def begin(self, text: str, written: Written = lambda start, end: (start, end)) -> None:
        """The next samples are those of `text`; `written` says where a part [start, end) of it is in the caller's."""
        with self._lock:
            for segment in self._segments[-1:]:
                segment.ended = True
            self._next = text, written

    def news(self) -> tuple[Word, ...]:
        """The words that are known since the call before, in order, as the caller wrote them; each comes once.

        The times of a word may change after it was reported. So no word begins before the end of the last reported one.
        """
        with self._lock:
            found: list[Word] = []
            for segment in self._segments[self._reporting :]:
                words = self._written(segment.words)
                if words and not segment.done and words[-1].text != segment.words[-1].text:
                    words.pop()  # what is spoken next may be a part of it, too
                for word in words[segment.reported :]:
                    start = max(word.start, self._reported_until)
                    self._reported_until = max(word.end, start)
                    found.append(replace(word, start=start, end=self._reported_until))
                segment.reported = max(segment.reported, len(words))
                if not segment.done:
                    break
                self._reporting += 1
            return tuple(found)

    def feed(self, samples: NDArray[np.float32], rate: int, last: bool) -> None:
        """The next samples.

        Args:
            last: no more samples of the text of `begin` follow.
        """
        self._hear(Chunk(samples, rate, 0, last, None), last)

    def _hear(self, chunk: Chunk, last: bool, spoken: SentenceChunk | None = None) -> None:
        """The next chunk; `spoken` says how far its text is written and read."""
        with self._lock:
            if self._next is not None:
                text, written = self._next
                rate = chunk.sample_rate
                segment = _Segment(text, written, self._samples, rate, self._keep, Loudness(rate), units_of(text))
                self._segments.append(segment)
                self._next = None
            segment = self._segments[-1]
            if self._given_up:
                segment.give_up()
            segment.hear(chunk.samples, last)
            first, self._samples = not self._samples, self._samples + len(chunk.samples)
            if spoken is not None:
                text = spoken.sentence.text
                read = len(text) if spoken.read is None else spoken.read
                segment.spell(text[:read] if last else text, spoken.growing and not last)
                self._read.append((self._samples / chunk.sample_rate, segment.written(0, read)[1]))
            # Work begins behind the first audio, which would come later for it.
            if not self._running and self._due() is not None and (last or not first):
                self._running, self._job = True, self._servers.backend.start(self._run())

    async def wait(self, seconds: float = END_SECONDS) -> Sequence[Word]:
        """All words of a speech that has ended; those that do not come in time are an estimate."""
        if self._job is not None:
            await self._servers.backend.wait(self._job, seconds)
        self.close()
        return self.words

    def close(self) -> None:
        """Ask for no more words. Those that are not known of what was spoken to its end are an estimate."""
        with self._lock:
            self._given_up = True
            for segment in self._segments:
                if not segment.done:
                    segment.give_up()
                    if segment.ended:
                        segment.estimate()

    def _due(self) -> _Segment | None:
        """The segment that the aligner is asked about next; None: there is nothing to ask now."""
        segment = next((each for each in self._segments if not each.done), None)
        return segment if segment is not None and segment.due else None

    async def _run(self) -> None:
        while True:
            with self._lock:
                segment = self._due()
                if segment is None:
                    self._running = False
                    return
                if segment.given_up or not segment.length:
                    segment.estimate()
                    continue
                final, begun, segment.begun = segment.ended, segment.begun, True
                first = None if begun else (segment.text, segment.rate, self._language)
                request = requests.alignment(segment.taken(), segment.id, final=final, first=first)
            try:
                answer = await self._servers.infer(request, ANSWER_SECONDS, segment.id)
                self._answered(segment, final, responses.result(answer))
            except VoiceCloneError as error:
                with self._lock:
                    segment.give_up()
                    self._given_up = self._given_up or not isinstance(error, Overloaded)

    def _answered(self, segment: _Segment, final: bool, result: Any) -> None:
        with self._lock:
            if segment.done or segment.given_up:  # meanwhile
                return
            known = 0 if final else len(segment.words)
            found = [
                segment.word(unit, each["start"], each["end"], each.get("confidence"), each["estimated"])
                for unit, each in zip(segment.units[known:], result["words"], strict=False)
            ]
            segment.words = found if final else [*segment.words, *found]
            segment.done = final


class BlockingWordTimes:
    """The words of one speech for the blocking client; see `AsyncWordTimes`.

    Args:
        times: that waits by `THREADS`.
    """

    def __init__(self, times: AsyncWordTimes) -> None:
        self._times = times
        self.begin, self.took, self.feed, self.news = times.begin, times.took, times.feed, times.news
        self.heard, self.write, self.close = times.heard, times.write, times.close

    @property
    def text(self) -> str:
        """As of `AsyncWordTimes`."""
        return self._times.text

    @property
    def words(self) -> list[Word]:
        """As of `AsyncWordTimes`."""
        return self._times.words

    def wait(self, seconds: float = END_SECONDS) -> Sequence[Word]:
        """As of `AsyncWordTimes`."""
        return now(self._times.wait(seconds))
