"""A text of any length, or one that is still being written, as one speech: sentence after sentence in one voice.

    async with LongSpeech(client) as speech:
        speech.begin({"voice": "ada", "seed": 7})
        speech.write("First sentence. Second sen")
        speech.write("tence.")
        speech.end()
        async for chunk in speech:
            ...

While one sentence is being taken, the next ones are made, a few and no more: whoever takes slowly, or stops, keeps no
server busy. The samples of the sentences follow each other as they are; a speech begins and ends near silence. With a
seed the speech can be repeated: each sentence is what the server makes of its text and `sentence_seed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from voice_clone_client import Cancelled, Chunk, InvalidArgument

from .sentences import MAX_CHARACTERS, MIN_CHARACTERS, Ending, Granularity, Sentence, SentenceSplitter

_COUNTED = ("text_tokens", "reference_frames", "frames")  # entries of `info` that add up over sentences


class Speech(Protocol):
    """What a client's `speak` returns."""

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """Its chunks."""

    def close(self) -> None:
        """Stop it."""


class Speaker(Protocol):
    """What makes the sentences: `voice_clone_client.AsyncClient`."""

    def speak(self, text: str, **options: Any) -> Speech:
        """Begin to say `text`."""


@dataclass(frozen=True)
class Plan:
    """How a text is cut, made and joined."""

    granularity: Granularity = "sentence"
    min_characters: int = MIN_CHARACTERS
    """Of a sentence; see `SentenceSplitter`."""
    max_characters: int = MAX_CHARACTERS
    prefetch: int = 2
    """Sentences that are made, and kept, ahead of the one that is being taken."""
    parallel: int = 1
    """Sentences that are made at once. More make a long text faster, and its first sentence slower."""
    sentence_pause: float = 0.0
    """Seconds of silence between sentences."""
    paragraph_pause: float = 0.0
    """Seconds of silence between paragraphs."""
    total_characters: int = 100_000
    """Longest text."""
    total_sentences: int = 10_000

    def pause_after(self, ending: Ending) -> float:
        """Seconds of silence behind a sentence that ends so and is not the last."""
        return {"sentence": self.sentence_pause, "paragraph": self.paragraph_pause}.get(ending, 0.0)


@dataclass(frozen=True, eq=False)
class SentenceChunk(Chunk):
    """A chunk of a long speech. `index` counts through all of it; `final` and `info` are those of the sentence."""

    sentence: Sentence
    sentence_index: int
    """0, 1, 2, ...; sentences without a letter or digit are not spoken and do not count."""
    seed: int | None
    """With which the sentence was made; None if the server chose one."""
    first: bool
    """Whether the sentence begins here. A pause before it is part of this chunk."""


@dataclass(frozen=True)
class Report:
    """How much of a text was spoken by a moment."""

    sentences: int
    """Whole ones."""
    characters: int
    """Of the text, up to the end of the last whole sentence."""
    seconds: float
    """Of audio."""
    partial: Sentence | None
    """The sentence that was begun and not finished."""
    partial_seconds: float


@dataclass(eq=False)
class _Line:
    """A sentence on its way."""

    sentence: Sentence
    index: int
    pause: float
    seed: int | None = None
    made: asyncio.Queue[Chunk | Exception] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] | None = None
    speech: Speech | None = None
    taken: float | None = None  # seconds of audio; None before the first chunk
    whole: bool = False


class LongSpeech(AsyncIterator[SentenceChunk]):
    """The chunks of a text, sentence by sentence; to be made and used in one event loop.

    An error of a sentence comes after the audio before it, and ends the speech. A text without a letter or digit to say
    is such an error, InvalidArgument; a blank one gives no chunks.

    Args:
        speaker: makes the sentences.
        plan: how the text is cut, made and joined.

    Raises:
        InvalidArgument: the plan makes no sense.
    """

    def __init__(self, speaker: Speaker, plan: Plan = Plan()) -> None:
        if plan.prefetch < 0 or plan.parallel < 1:
            raise InvalidArgument("a speech needs prefetch >= 0 and parallel >= 1")
        self._speaker = speaker
        self._options: Mapping[str, Any] | None = None
        self._plan = plan
        self._splitter = SentenceSplitter(
            plan.granularity, min_characters=plan.min_characters, max_characters=plan.max_characters
        )
        self._lines: list[_Line] = []
        self._current = 0  # index of the line that is being taken
        self._chunks = 0
        self._characters = 0
        self._ended = False
        self._mute = False  # marks and nothing else
        self._closed = asyncio.Event()
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(plan.parallel)
        self._info: Mapping[str, Any] | None = None
        self._counts: Mapping[str, int] = {}

    def begin(self, options: Mapping[str, Any]) -> None:
        """Let the sentences be made; the text may have come before.

        Args:
            options: of `Speaker.speak`, for each sentence; `seed` is that of the whole speech.
        """
        self._options = dict(options)
        self._make_more()

    def write(self, text: str) -> None:
        """Add to the text.

        Raises:
            InvalidArgument: the text is too long with it, or was ended. What was written before stays.
        """
        self._read(text, final=False)

    def end(self, text: str = "") -> None:
        """Add the last of the text, or all of it; what is no whole sentence yet is spoken too.

        Raises:
            InvalidArgument: as for `write`.
        """
        self._read(text, final=True)

    def _read(self, text: str, final: bool) -> None:
        if self._ended:
            raise InvalidArgument("the text was ended; more of it needs another speech")
        most = self._plan.total_characters
        if self._characters + len(text) > most:
            raise InvalidArgument(f"the text is too long; at most {most} characters are allowed")
        self._characters += len(text)
        found = self._splitter.feed(text, final)
        try:
            for sentence in found:
                if sentence.spoken:
                    self._add(sentence)
        finally:
            self._ended = final
            self._mute = final and bool(found) and not self._lines
            self._make_more()
            self._changed.set()

    def _add(self, sentence: Sentence) -> None:
        index = len(self._lines)
        if index >= self._plan.total_sentences:
            raise InvalidArgument(f"the text is too long; at most {self._plan.total_sentences} sentences are allowed")
        pause = self._plan.pause_after(self._lines[-1].sentence.ending) if self._lines else 0.0
        self._lines.append(_Line(sentence, index, pause))

    def _make_more(self) -> None:
        """Begin the sentences that may be made now."""
        if self._options is None or self._closed.is_set():
            return
        for line in self._lines[self._current : self._current + 1 + self._plan.prefetch]:
            if line.task is None:
                line.seed = sentence_seed(self._options.get("seed"), line.index)
                line.task = asyncio.create_task(self._make(line, {**self._options, "seed": line.seed}))

    async def _make(self, line: _Line, options: Mapping[str, Any]) -> None:
        try:
            async with self._slots:
                line.speech = self._speaker.speak(line.sentence.text, **options)
                try:
                    async for chunk in line.speech:
                        line.made.put_nowait(chunk)
                finally:
                    line.speech.close()
        except Exception as error:  # of whatever kind: it belongs to whoever takes this sentence
            line.made.put_nowait(error)

    async def __anext__(self) -> SentenceChunk:
        try:
            while not self._closed.is_set():
                if self._current < len(self._lines):
                    line = self._lines[self._current]
                    made = await line.made.get()
                    if self._closed.is_set():
                        break
                    if isinstance(made, Exception):
                        self.close()
                        raise made
                    return self._take(line, made)
                if self._mute:
                    raise InvalidArgument("the text has nothing to say; give at least one letter or digit")
                if self._ended:
                    raise StopAsyncIteration
                self._changed.clear()
                await self._changed.wait()
        except asyncio.CancelledError:
            self.close()
            raise
        raise Cancelled("the speech was closed before its end")

    def _take(self, line: _Line, chunk: Chunk) -> SentenceChunk:
        first = line.taken is None
        samples = chunk.samples
        if first and line.pause:
            samples = np.concatenate([np.zeros(round(line.pause * chunk.sample_rate), np.float32), samples])
        line.taken = (line.taken or 0.0) + len(samples) / chunk.sample_rate
        line.whole = chunk.final
        if chunk.info:
            self._tell(chunk.info, line)
        if line.whole:
            self._current += 1
            self._make_more()
        self._chunks += 1
        return SentenceChunk(
            samples=samples,
            sample_rate=chunk.sample_rate,
            index=self._chunks - 1,
            final=chunk.final,
            info=chunk.info,
            sentence=line.sentence,
            sentence_index=line.index,
            seed=line.seed,
            first=first,
        )

    def _tell(self, info: Mapping[str, Any], line: _Line) -> None:
        counts = {key: self._counts.get(key, 0) + info[key] for key in _COUNTED if key in info}
        self._info = {**info, **counts, "sentences": line.index + 1}
        if line.whole:
            self._counts = counts

    @property
    def info(self) -> Mapping[str, Any] | None:
        """What the server told last; tokens and frames are those of all sentences up to then."""
        return self._info

    def report(self, seconds: float | None = None) -> Report:
        """How much was spoken in the first `seconds` of the audio that was taken; None for all of it."""
        left = float("inf") if seconds is None else seconds
        sentences, characters, heard = 0, 0, 0.0
        for line in self._lines:
            taken = min(line.taken or 0.0, left)
            heard += taken
            left -= taken
            if not line.whole or taken < (line.taken or 0.0) - 1e-6:
                return Report(sentences, characters, heard, line.sentence if taken else None, taken)
            sentences, characters = sentences + 1, line.sentence.end
        return Report(sentences, characters, heard, None, 0.0)

    def close(self) -> None:
        """Stop the speech, here and on the server. Whoever waits for a chunk gets `Cancelled`."""
        self._closed.set()
        self._changed.set()
        for line in self._lines[self._current :]:
            if line.task is None:
                break
            line.task.cancel()
            if line.speech is not None:
                line.speech.close()
            line.made.put_nowait(Cancelled("closed"))  # wakes who waits for it

    async def __aenter__(self) -> LongSpeech:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sentence_seed(seed: int | None, index: int) -> int | None:
    """The seed of a sentence: that of the speech for the first, so that a single sentence is an ordinary speech.

    For the others it is the 8-byte BLAKE2b hash of seed and index, all three as 8 bytes, little-endian.
    """
    if seed is None or index == 0:
        return seed
    digest = blake2b(seed.to_bytes(8, "little") + index.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
