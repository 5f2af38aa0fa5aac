"""The speech of one sentence of a longer text: it is made in the background, and its chunks wait to be read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import Cancelled
from ..sentences import Sentence
from ..types import Chunk
from .speaker import Speaker, Speech


@dataclass(frozen=True, eq=False)
class SentenceChunk(Chunk):
    """A chunk of a long speech. `index` counts through all of it; `final` and `info` are those of the sentence."""

    sentence: Sentence
    sentence_index: int
    """0, 1, 2, ...; sentences without a letter or digit are not spoken and do not count."""
    seed: int | None
    """The seed of the sentence; None if the server chose one."""
    first: bool
    """Whether this is the first chunk of the sentence. It includes the pause before it."""


@dataclass(eq=False)
class AsyncSentence:
    """A sentence and the state of its speech."""

    sentence: Sentence
    index: int
    pause: float
    """Seconds of silence before it."""
    seed: int | None = None
    results: asyncio.Queue[Chunk | Exception | None] = field(default_factory=asyncio.Queue)
    """Its chunks; last the error, or None if there is none."""
    task: asyncio.Task[None] | None = None
    """Makes it; None before `start`."""
    speech: Speech | None = None
    unread: float = 0.0
    """Seconds of audio in `results`."""
    sent: float | None = None
    """Seconds of audio that were read, with the pause; None before the first chunk."""
    complete: bool = False
    """Whether all of it was read."""

    def start(self, speaker: Speaker, options: Mapping[str, Any]) -> asyncio.Task[None]:
        """Make it in a task, which is returned.

        Args:
            speaker: speaks it.
            options: of `Speaker.speak`; `seed` is the sentence's own instead.
        """
        self.task = asyncio.create_task(self._run(speaker, {**options, "seed": self.seed}))
        return self.task

    @property
    def live(self) -> bool:
        """Whether it is being made."""
        return self.task is not None and not self.task.done()

    async def _run(self, speaker: Speaker, options: Mapping[str, Any]) -> None:
        try:
            self.speech = self.begin(speaker, options)
            try:
                async for chunk in self.speech:
                    self.unread += len(chunk.samples) / chunk.sample_rate
                    self.results.put_nowait(chunk)
            finally:
                self.speech.close()
            self.results.put_nowait(None)
        except Exception as error:  # of any kind; the reader of this sentence raises it
            self.results.put_nowait(error)

    def begin(self, speaker: Speaker, options: Mapping[str, Any]) -> Speech:
        """Ask for it."""
        return speaker.speak(self.sentence.text, **options)

    def heard(self, seconds: float) -> Sentence:
        """What was spoken of it, or begun, in so many seconds of its audio."""
        return self.sentence

    def take(self, chunk: Chunk, index: int) -> SentenceChunk:
        """A chunk of `results` as it is read.

        Args:
            chunk: the next one.
            index: of the chunk in the whole speech.
        """
        first = self.sent is None
        samples = chunk.samples
        self.unread -= len(samples) / chunk.sample_rate
        if first and self.pause:
            samples = np.concatenate([np.zeros(round(self.pause * chunk.sample_rate), np.float32), samples])
        self.sent = (self.sent or 0.0) + len(samples) / chunk.sample_rate
        self.complete = chunk.final
        return SentenceChunk(
            samples=samples,
            sample_rate=chunk.sample_rate,
            index=index,
            final=chunk.final,
            info=chunk.info,
            sentence=self.sentence,
            sentence_index=self.index,
            seed=self.seed,
            first=first,
        )

    def stop(self) -> None:
        """Stop it, here and on the server. A task that waits for `results` gets `Cancelled`."""
        if self.task is not None:
            self.task.cancel()
        if self.speech is not None:
            self.speech.close()
        self.results.put_nowait(Cancelled("closed"))
