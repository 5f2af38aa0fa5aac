"""A text with pauses, SSML, pronunciations or numbers that is spoken while it is written.

Its plan is made of increments, and does not depend on them: of what was written, the part that further text could
change waits, which is about a word. Each span of the plan is a speech of its own, whose text grows with it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from voice_clone_client import Cancelled, InvalidArgument
from voice_clone_client.joined_info import JoinedInfo
from voice_clone_client.long_text.long_speech import AsyncLongSpeech
from voice_clone_client.long_text.plan import Report
from voice_clone_client.long_text.speaker import Speech
from voice_clone_client.long_text.text import SentenceChunk
from voice_clone_sound.joined_parts import Samples, Shape
from voice_clone_text.normalizers import Missing
from voice_clone_text.pieces import Mark, Piece, Silence, Style, Words
from voice_clone_text.planner import Planner, Settings
from voice_clone_text.sentences import SPOKEN, Sentence, WholeCharacters
from voice_clone_text.sequence import checked_rate
from voice_clone_text.tags import MarkupError

from .segments import refusal_of
from .streaming_text import StreamingText, WrittenLength

_AT_ONCE = 4096  # characters that are planned without a thread, if their numbers stay as they are

Written = AsyncLongSpeech | StreamingText
Speak = Callable[[Style, Written], Awaitable[Speech]]
"""Begins a speech in a style; what it returns has its chunks."""


@dataclass(frozen=True, eq=False)
class PlannedChunk(SentenceChunk):
    """A chunk of such a text."""

    marks: tuple[Mark, ...] = ()
    """Those that are in its sentence or before it, and were in no chunk yet."""


@dataclass(eq=False)
class _Part:
    """A span of the plan: a speech of its own."""

    speech: Written
    style: Style
    pause: float
    """Seconds of silence before it."""
    behind: float | None = None
    """Behind it; None: not known yet."""
    begun: asyncio.Task[Speech] | None = None
    shape: Shape | None = None
    """From its first chunk on."""
    sentences: int = 0
    seconds: float = 0.0
    """Of audio that was read, with the silence before it."""
    over: bool = False
    marks: list[tuple[int, Mark]] = field(default_factory=list)
    """That were not told yet, each with the characters of its text before it."""
    length: int = 0
    """Characters of its text."""
    _words: list[Words] = field(default_factory=list)
    _begins: list[int] = field(default_factory=list)
    """Of each of the words, in the text of the speech."""

    def write(self, words: Words) -> None:
        """More of its text."""
        self._words.append(words)
        self._begins.append(self.length)
        self.length += len(words.text)
        self.speech.write(words.text)

    def written(self, sentence: Sentence) -> Sentence:
        """A sentence of its speech, with the place at which it is written."""
        start, end = self.places(sentence.start, sentence.end)
        return replace(sentence, start=start, end=end)

    def places(self, start: int, end: int) -> tuple[int, int]:
        """Where a part [start, end) of the text of its speech is written."""
        return self._place(start, False), self._place(end, True)

    def places_from(self, begin: int) -> Callable[[int, int], tuple[int, int]]:
        """The same for parts of a sentence that begins there."""
        return lambda start, end: self.places(begin + start, begin + end)

    def _place(self, spoken: int, end: bool) -> int:
        index = max(0, bisect_right(self._begins, spoken - end) - 1)
        words, behind = self._words[index], spoken - self._begins[index]
        return words.start + behind if words.written else words.end if end else words.start

    def report(self, seconds: float, rate: float) -> Report:
        """What was heard of it in so many seconds of its audio."""
        whole = self.over and seconds >= self.seconds - 1e-6
        found = self.speech.report(None if whole else max(0.0, seconds - self.pause) * rate)
        end = self._words[-1].end if whole else self._place(found.characters, True) if found.characters else 0
        partial = None if whole or found.partial is None else self.written(found.partial)
        return Report(found.sentences, end, seconds, partial, found.partial_seconds / rate)


class PlannedText(WrittenLength, AsyncIterator[PlannedChunk]):
    """The chunks of such a text; for one event loop. As an `AsyncLongSpeech`; the sentences count through all spans,
    and have the places at which they are written.

    Args:
        settings: how the text is read.
        make: makes a speech whose text will be written.
        rate: factor of the tempo, beside those of the text.
        charge: called with the number of characters that will be spoken.
        most, flush_after: see `WrittenLength`.
    """

    def __init__(
        self,
        settings: Settings,
        make: Callable[[], Written],
        *,
        rate: float = 1.0,
        most: int | None = None,
        charge: Callable[[int], None] = lambda count: None,
        flush_after: float | None = None,
    ) -> None:
        super().__init__(most, flush_after)
        self._planner = Planner(settings)
        self._aside = settings.normalize != "off"
        self._make, self._rate, self._charge = make, rate, charge
        self._whole = WholeCharacters()
        self._texts: asyncio.Queue[tuple[str, bool, bool]] = asyncio.Queue()  # flush, end
        self._planning: asyncio.Task[None] | None = None
        self._planned = False  # all of it
        self._error: Exception | None = None  # of its plan
        self._before: list[Words] = []  # without a letter or digit, in front of a part
        self._open: _Part | None = None  # whose text goes on
        self._pause = 0.0  # behind the latest part
        self._marks: list[Mark] = []  # behind it
        self._parts: list[_Part] = []
        self._current = 0  # which part is read
        self._changed = asyncio.Event()
        self._speak: Speak | None = None
        self._closed = False
        self._said = JoinedInfo()
        self._out: deque[PlannedChunk] = deque()
        self._last: PlannedChunk | None = None  # of a sentence whose last samples may wait
        self._latest: PlannedChunk | None = None
        self._passed: list[Mark] = []  # behind the last sentence of a part that is over
        self._tail = 0.0  # seconds of silence behind the last part
        self._chunks = self._sentences = 0
        self.warnings: list[str] = []
        """Sentences: what of the text has no effect, as far as it is known."""

    def begin(self, speak: Speak) -> None:
        """Start speaking. Text may have been written before."""
        self._speak = speak
        self._planning = asyncio.create_task(self._plan())

    def write(self, text: str) -> None:
        """Add to the text. Raises: InvalidArgument, if it is too long or was ended."""
        self._count(text)
        self._texts.put_nowait((text, False, False))

    def end(self) -> None:
        """The text is complete."""
        self._timer.stop()
        self._ended = True
        self._texts.put_nowait(("", False, True))

    def flush(self) -> None:
        super().flush()
        self._texts.put_nowait(("", True, False))

    @property
    def info(self) -> Mapping[str, Any] | None:
        return self._said.info or None

    def report(self, seconds: float | None = None) -> Report:
        """How much was spoken in the first `seconds` of the audio that was read; None for all of it."""
        left = float("inf") if seconds is None else seconds
        sentences, characters, heard = 0, 0, 0.0
        for part in self._parts:
            sent = min(part.seconds, left)
            heard, left = heard + sent, left - sent
            found = part.report(sent, self._rate * part.style.rate)
            sentences, characters = sentences + found.sentences, max(characters, found.characters)
            if not part.over or sent < part.seconds - 1e-6:
                return Report(sentences, characters, heard, found.partial, found.partial_seconds)
        return Report(sentences, characters, heard + min(left, self._tail), None, 0.0)

    def close(self) -> None:
        """Stop the speech, here and on the server. A task that waits for a chunk gets `Cancelled`."""
        self._closed = True
        self._timer.stop()
        if self._planning is not None:
            self._planning.cancel()
        for part in self._parts[self._current :]:
            begun = part.begun
            if begun is not None and not begun.cancel() and not begun.cancelled() and begun.exception() is None:
                begun.result().close()
            part.speech.close()
        self._changed.set()

    async def _plan(self) -> None:
        """Make the plan of the increments, one after another."""

        def read(text: str, flush: bool, end: bool) -> list[Piece]:
            pieces = self._planner.feed(text, end)
            return pieces + self._planner.flush() if flush else pieces

        try:
            while not self._planned:
                text, flush, end = await self._texts.get()
                text = self._whole.feed(text, flush or end)
                aside = self._aside or len(text) > _AT_ONCE
                for piece in await asyncio.to_thread(read, text, flush, end) if aside else read(text, flush, end):
                    self._add(piece)
                self.warnings = self._planner.warnings
                if self._open is not None and flush:
                    self._open.behind = 0.0  # a silence that comes later leaves its end as it is
                    self._close_part()
                if end:
                    self._end()
                self._look_ahead()
        except (MarkupError, Missing) as error:
            self._end(refusal_of(error, "text"))
        except Exception as error:  # of any kind; the reader raises it behind the audio before it
            self._end(error)

    def _add(self, piece: Piece) -> None:
        """The next piece of the plan."""
        if isinstance(piece, Mark):
            if self._open is None:
                self._marks.append(piece)
            else:
                self._open.marks.append((self._open.length, piece))
            return
        if isinstance(piece, Silence):
            self._close_part()
            self._pause += piece.seconds
            return
        latest = self._open.style if self._open else self._before[0].style if self._before else piece.style
        if piece.style != latest:
            self._close_part()
        if self._open is not None:
            self._write(self._open, piece)
            return
        self._before.append(piece)
        if SPOKEN.search(piece.text):
            try:
                checked_rate(self._rate * piece.style.rate)
            except ValueError as error:
                raise InvalidArgument(str(error)) from None
            self._know_behind()
            self._open = _Part(self._make(), piece.style, self._pause, marks=[(0, mark) for mark in self._marks])
            self._parts.append(self._open)
            for words in self._before:
                self._write(self._open, words)
            self._before, self._pause, self._marks = [], 0.0, []
            self._changed.set()

    def _write(self, part: _Part, words: Words) -> None:
        self._charge(len(words.text))
        part.write(words)

    def _close_part(self) -> None:
        if self._open is not None:
            self._open.speech.end()
        self._open, self._before = None, []

    def _know_behind(self) -> None:
        if self._parts and self._parts[-1].behind is None:
            self._parts[-1].behind = self._pause

    def _end(self, error: Exception | None = None) -> None:
        """Nothing more comes."""
        self._error = error
        self._close_part()
        self._know_behind()
        self._planned = True
        self._look_ahead()
        self._changed.set()

    def _look_ahead(self) -> None:
        """Begin the part that is read, and the next one as soon as there is audio of that."""
        assert self._speak is not None
        for index in (self._current, self._current + 1):
            if index < len(self._parts) and not self._closed:
                part = self._parts[index]
                if part.begun is None:
                    part.begun = asyncio.ensure_future(self._speak(part.style, part.speech))
                if part.shape is None:
                    break

    async def __anext__(self) -> PlannedChunk:
        try:
            while not self._out:
                await self._read()
        except BaseException:
            self.close()
            raise
        return self._out.popleft()

    async def _read(self) -> None:
        """Wait for the next chunk, or for the end of a part."""
        if self._closed:
            raise Cancelled("the speech was closed before its end")
        self._changed.clear()
        if self._current == len(self._parts):
            if not self._planned:
                await self._changed.wait()
                return
            if self._error is not None:
                raise self._error
            if self._latest is None and not self._blank:
                raise InvalidArgument("the text has nothing to speak; it needs at least one letter or digit")
            if self._latest is None or not (self._pause or self._passed or self._marks):
                raise StopAsyncIteration
            self._put_with_tail(replace(self._latest, samples=_silence(0.0, 1), first=False, last=False))
            return
        self._look_ahead()
        part = self._parts[self._current]
        assert part.begun is not None
        speech = await part.begun
        try:
            chunk = await anext(speech)
        except StopAsyncIteration:
            while part.behind is None and not self._closed:
                await self._changed.wait()
                self._changed.clear()
            self._end_part(part)
        else:
            assert isinstance(chunk, SentenceChunk)
            self._said.add(speech.info or {})
            self._take(part, chunk)
            self._look_ahead()

    def _take(self, part: _Part, chunk: SentenceChunk) -> None:
        """Put out what is heard of a chunk."""
        samples, rate = chunk.samples, chunk.sample_rate
        first = part.shape is None
        if part.shape is None:
            tempo = self._rate * part.style.rate
            part.shape = Shape(rate, part.pause, part.behind, tempo, part.style.gain)
        samples = part.shape.push(samples, final=False)
        if first:
            samples = np.concatenate([_silence(part.pause, rate), samples])
        last = chunk.last and not part.shape.waits
        if self._last is not None:
            self._put(self._last, None)
            self._last = None
        passed = [mark for place, mark in part.marks if place < chunk.sentence.end]
        del part.marks[: len(passed)]
        own = {
            "samples": samples,
            "sentence": part.written(chunk.sentence),
            "sentence_index": self._sentences + chunk.sentence_index,
            "final": False,
            "last": last,
            "places": part.places_from(chunk.sentence.start),
            "marks": (*self._passed, *passed),
        }
        self._passed.clear()
        changed = PlannedChunk(**{**vars(chunk), **own})
        self._put(changed, part)
        part.sentences = chunk.sentence_index + 1
        if chunk.last and not last:
            self._last = replace(changed, samples=samples[:0], first=False, last=True, marks=())

    def _end_part(self, part: _Part) -> None:
        """The rest of a part."""
        self._passed += [mark for _, mark in part.marks]
        if part.shape is not None and self._last is not None:
            last, self._last = self._last, None
            last = replace(last, samples=part.shape.push(np.zeros(0, np.float32), True, part.behind))
            if self._planned and self._error is None and part is self._parts[-1]:
                part.seconds += len(last.samples) / last.sample_rate
                self._put_with_tail(last)
            else:
                self._put(last, part)
        part.over = True
        self._said.end()
        self._sentences += part.sentences
        self._current += 1

    def _put_with_tail(self, chunk: PlannedChunk) -> None:
        """Put out the last chunk, with the silence and the marks behind all parts."""
        tail, self._pause = _silence(self._pause, chunk.sample_rate), 0.0
        self._tail += len(tail) / chunk.sample_rate
        marks = (*self._passed, *self._marks)
        self._passed, self._marks = [], []
        self._put(replace(chunk, samples=np.concatenate([chunk.samples, tail]), marks=marks), None)

    def _put(self, chunk: PlannedChunk, part: _Part | None) -> None:
        if part is not None:
            part.seconds += len(chunk.samples) / chunk.sample_rate
        self._latest = replace(chunk, index=self._chunks)
        self._out.append(self._latest)
        self._chunks += 1


def _silence(seconds: float, rate: int) -> Samples:
    return np.zeros(round(seconds * rate), np.float32)
