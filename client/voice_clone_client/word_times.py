"""When the words of a speech are spoken: the server's model `aligner` gets its samples beside whoever reads them.

The samples go back to the server in pieces, one at a time, from a queue with a bound. So a speech does not wait for its
words, and no ensemble knows of them. Where the server has no aligner, refuses or is late, the words are an estimate.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from voice_clone_words.estimate import estimate, guess
from voice_clone_words.loudness import Loudness
from voice_clone_words.units import Unit, units_of
from voice_clone_words.words import Word, heard_characters

from . import requests, responses
from .backends import Job, now
from .errors import Overloaded, VoiceCloneError
from .long_text.text import SentenceChunk
from .types import Chunk

if TYPE_CHECKING:
    from .servers.servers import Servers

C = TypeVar("C", bound=Chunk)

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
    """What is spoken at once, such as a sentence."""

    text: str
    written: Callable[[int, int], tuple[int, int]]
    """Where a part [start, end) of it is in the caller's text."""
    begin: int
    """Its first sample in the speech."""
    rate: int
    loudness: Loudness
    units: list[Unit]
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

    def word(self, unit: Unit, start: int, end: int, confidence: float | None = None, estimated: bool = False) -> Word:
        """A word of the whole speech, of samples of this segment."""
        times = ((self.begin + start) / self.rate, (self.begin + end) / self.rate)
        return Word(unit.text, *times, self.written(unit.start, unit.end), confidence, estimated)

    def estimate(self) -> None:
        """No engine says when the words are spoken."""
        times = estimate(self.units, self.loudness.silent(), self.loudness.step, self.length)
        self.words = [self.word(unit, *each, estimated=True) for unit, each in zip(self.units, times, strict=True)]
        self.done = True

    def give_up(self) -> None:
        """Send no more of it."""
        self.given_up, self.unsent = True, 0
        self.waiting.clear()


class WordTimes:
    """The words of one speech, as far as they are known. It waits for nothing; thread-safe.

    Args:
        text: of the caller.
        language: as the speech names it.
        confidence: whether words have one; all words of a sentence then come at its end.
    """

    def __init__(self, text: str, language: str | None = None, *, confidence: bool = False) -> None:
        self.text = text
        """Of the caller. More may be added to it before that is spoken."""
        self._language = language
        self._confidence = confidence
        self._lock = threading.RLock()
        self._segments: list[_Segment] = []
        self._next: tuple[str, Callable[[int, int], tuple[int, int]]] | None = None
        self._samples = 0
        self._given_up = False
        self._telling = 0  # the segment that `news` is at
        self._unreported: Word | None = None  # of which more words may be a part

    @property
    def words(self) -> list[Word]:
        """All that are known, in order, as the caller wrote them. Several that are spoken in place of one are one."""
        with self._lock:
            words = [word for segment in self._segments for word in segment.words]
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
        the pace so far."""
        with self._lock:
            words = [word for segment in self._segments for word in segment.words]
            segment = self._segments[-1] if self._segments else None
            if segment is not None and not segment.done:
                known = len(segment.words)
                begin = round((words[-1].end if known else segment.begin / segment.rate) * segment.rate)
                pace = (words[-1].span[1], words[-1].end) if words else (0, 0.0)
                times = guess(segment.units[known:], begin - segment.begin, segment.rate, *pace)
                words += [
                    segment.word(unit, *each, estimated=True)
                    for unit, each in zip(segment.units[known:], times, strict=True)
                ]
        return self.text[: heard_characters(words, seconds)]

    def took(self, chunk: C) -> C:
        """A chunk of the speech that is read, with the words that are known since the chunk before."""
        if isinstance(chunk, SentenceChunk):
            if chunk.first:
                start, end = chunk.sentence.start, chunk.sentence.end
                self.begin(self.text[start:end], lambda first, last: (start + first, start + last))
            last = chunk.last
        else:
            if chunk.index == 0:
                self.begin(self.text)
            last = chunk.final
        self.feed(chunk.samples, chunk.sample_rate, last)
        return replace(chunk, words=self.news())

    def begin(
        self, text: str, written: Callable[[int, int], tuple[int, int]] = lambda first, last: (first, last)
    ) -> None:
        """The next samples are those of `text`; `written` says where a part [first, last) of it is in the caller's."""
        with self._lock:
            for segment in self._segments[-1:]:
                segment.ended = True
            self._next = text, written

    def news(self) -> tuple[Word, ...]:
        """The words that are known since the call before, in order, as the caller wrote them; each comes once."""
        with self._lock:
            found: list[Word] = []
            for segment in self._segments[self._telling :]:
                for word in segment.words[segment.reported :]:
                    if self._unreported is not None and self._unreported.span == word.span:
                        self._unreported = replace(self._unreported, end=word.end)
                        continue
                    found += self._all_reported()
                    written = replace(word, text=self.text[slice(*word.span)])
                    if written == word:
                        found.append(word)
                    else:  # other words may be spoken in its place, too
                        self._unreported = written
                segment.reported = max(segment.reported, len(segment.words))
                if not segment.done:
                    break
                found += self._all_reported()
                self._telling += 1
            return tuple(found)

    def _all_reported(self) -> list[Word]:
        word, self._unreported = self._unreported, None
        return [] if word is None else [word]

    def feed(self, samples: NDArray[np.float32], rate: int, last: bool) -> None:
        """The next samples.

        Args:
            last: no more samples of the text of `begin` follow.
        """
        with self._lock:
            if self._next is not None:
                text, written = self._next
                self._segments.append(_Segment(text, written, self._samples, rate, Loudness(rate), units_of(text)))
                self._next = None
            segment = self._segments[-1]
            segment.loudness.feed(samples)
            segment.length += len(samples)
            self._samples += len(samples)
            segment.ended = segment.ended or last
            if self._given_up:
                segment.give_up()
            if not segment.given_up and len(samples):
                segment.waiting.append(samples)
                segment.unsent += len(samples)
                if segment.unsent > MOST_WAITING * rate:
                    segment.give_up()

    def close(self) -> None:
        """Ask for no more words: those that are not known are an estimate."""
        with self._lock:
            self._given_up = True
            for segment in self._segments:
                if not segment.done:
                    segment.give_up()
                    segment.estimate()

    @property
    def _pending(self) -> bool:
        """Whether `_due` has something to do."""
        return any(not each.done and (each.ended or each.unsent >= LEAST_SENT * each.rate) for each in self._segments)

    def _due(self) -> tuple[_Segment, bool, Any] | None:
        """The segment that the next request to the aligner is about, whether it is the last one, and the request; None:
        there is nothing to send now."""
        for segment in self._segments:
            if segment.done:
                continue
            if not segment.ended and (segment.given_up or segment.unsent < LEAST_SENT * segment.rate):
                return None
            if segment.given_up or not segment.length:
                segment.estimate()
                continue
            samples = np.concatenate([np.zeros(0, np.float32), *segment.waiting])
            segment.waiting.clear()
            segment.unsent = 0
            first, segment.begun = not segment.begun, True
            request = requests.alignment(
                samples,
                segment.id,
                final=segment.ended,
                first=(segment.text, segment.rate, self._language, self._confidence) if first else None,
            )
            return segment, segment.ended, request
        return None

    def _answered(self, segment: _Segment, final: bool, result: Any) -> None:
        with self._lock:
            if segment.done:  # it was closed meanwhile
                return
            known = 0 if final else len(segment.words)
            units = segment.units[known:]
            found = [
                segment.word(unit, each["start"], each["end"], each.get("confidence"), each["estimated"])
                for unit, each in zip(units, result["words"], strict=False)
            ]
            segment.words = found if final else [*segment.words, *found]
            segment.done = final

    def _failed(self, segment: _Segment, error: VoiceCloneError) -> None:
        with self._lock:
            segment.give_up()
            self._given_up = self._given_up or not isinstance(error, Overloaded)


class AsyncWordTimes(WordTimes):
    """Asks the aligner in the background, as long as there is something to ask.

    Args:
        servers: with the aligner.
        The others: as of `WordTimes`.
    """

    def __init__(self, servers: Servers, text: str, language: str | None = None, *, confidence: bool = False) -> None:
        super().__init__(text, language, confidence=confidence)
        self._servers = servers
        self._running = False
        self._job: Job[None] | None = None

    def feed(self, samples: NDArray[np.float32], rate: int, last: bool) -> None:
        super().feed(samples, rate, last)
        with self._lock:
            if self._pending and not self._running:  # the first chunk of a stream is too short to be sent
                self._running, self._job = True, self._servers.backend.start(self._run())

    async def wait(self, seconds: float = END_SECONDS) -> Sequence[Word]:
        """All words of a speech that has ended; those that do not come in time are an estimate."""
        if self._job is not None:
            await self._servers.backend.wait(self._job, seconds)
        self.close()
        return self.words

    async def _run(self) -> None:
        while True:
            with self._lock:
                due = self._due()
                if due is None:
                    self._running = False
                    return
            segment, final, request = due
            try:
                answer = await self._servers.infer(request, ANSWER_SECONDS, segment.id)
                self._answered(segment, final, responses.result(answer))
            except VoiceCloneError as error:
                self._failed(segment, error)


class BlockingWordTimes:
    """The words of one speech for the blocking client; see `WordTimes`.

    Args:
        times: that waits by `THREADS`.
    """

    def __init__(self, times: AsyncWordTimes) -> None:
        self._times = times
        self.begin, self.took, self.feed, self.news = times.begin, times.took, times.feed, times.news
        self.heard, self.close = times.heard, times.close

    @property
    def words(self) -> list[Word]:
        """As of `WordTimes`."""
        return self._times.words

    def wait(self, seconds: float = END_SECONDS) -> Sequence[Word]:
        """As of `AsyncWordTimes`."""
        return now(self._times.wait(seconds))
