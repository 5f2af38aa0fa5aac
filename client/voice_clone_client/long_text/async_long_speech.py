"""A text of any length, or one that is still being written, as one speech, sentence by sentence in one voice.

    speech = AsyncLongSpeech(client, Plan())
    speech.begin({"voice": "ada", "seed": 7})
    speech.write("First sentence. Second sen")
    speech.write("tence.")
    speech.end()
    async for chunk in speech:
        ...

While the chunks of one sentence are read, the server makes a bounded number of further sentences, and none while
`MOST_UNREAD` seconds wait to be read. So a reader that is slow or stops keeps no server busy and fills no memory. A
sentence that was begun is made to its end: a paused one would keep its place on the server.

The samples of the sentences follow each other unchanged; a speech begins and ends near silence. A seed makes the speech
repeatable: each sentence is the speech of its text with `sentence_seed`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

import numpy as np
from numpy.typing import NDArray
from voice_clone_text.sentences import Sentence

from ..errors import Cancelled
from ..servers.channel import END_SECONDS
from ..speeches.async_speech import AsyncSpeech
from ..speeches.progress import Progress
from .async_sentence import AsyncSentence
from .plan import Plan
from .speaker import Speaker
from .text import LongText, SentenceChunk


class AsyncLongSpeech(LongText[AsyncSentence], AsyncSpeech):
    """The chunks of a text, sentence by sentence; for one event loop.

    An error of a sentence is raised after the audio before it, and ends the speech. A missed end is one, if `options`
    of `begin` ask for `require_whole`. A text without a letter or digit is such an error, InvalidArgument; a blank text
    has no chunks.

    Args:
        speaker: speaks the sentences.
        plan, retried: see `LongText`.
        keep: called with the bytes of audio that wait to be read from now on, fewer or more; what it raises for more
            of them ends the speech.
    """

    def __init__(
        self,
        speaker: Speaker,
        plan: Plan,
        retried: Callable[[str | None], None] = lambda model: None,
        keep: Callable[[int], None] = lambda count: None,
    ) -> None:
        LongText.__init__(self, plan, retried)
        self._keep = keep
        self._kept = self._bytes_of_second = 0
        self._speaker = speaker
        self._closed = False
        self._changed = asyncio.Event()
        self._progress = Progress(time.monotonic())

    def __aiter__(self) -> AsyncLongSpeech:
        return self

    async def __anext__(self) -> SentenceChunk:
        chunk = await super().__anext__()
        assert isinstance(chunk, SentenceChunk)
        return chunk

    async def read(self) -> tuple[NDArray[np.float32], int]:
        """The samples [n] of all chunks that were not iterated yet, and their rate in Hz; waits for the end. A sentence
        whose end the model missed is made again, as the plan says."""
        self.hold()
        return await super().read()

    @property
    def _sample_rate(self) -> int:
        return self.sample_rate

    def close(self) -> None:
        """Stop the speech, here and on the server. A task that waits for a chunk gets `Cancelled`."""
        self._closed = True
        self._weigh()
        self._progress.cancel()
        self._changed.set()
        for speech in self._speeches[self._current :]:
            speech.chunks.clear()
            if speech.task is None:
                break
            speech.stop()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        last = self._speeches[-1].task if self.finished and not self._closed else None
        if last is not None:  # as in `Speech`
            await asyncio.wait((last,), timeout=END_SECONDS)
        self.close()

    async def _next(self) -> SentenceChunk:
        try:
            while not self._closed:
                self._changed.clear()
                if (chunk := self._take()) is not None:
                    self._weigh()
                    self._start_tasks()
                    return chunk
                if self._over:
                    break
                await self._changed.wait()
        except BaseException as error:
            if isinstance(error, Exception):
                self._progress.fail(error)
            self.close()
            raise
        if not self._over:
            raise Cancelled("the speech was closed before its end")
        self._progress.end()
        raise StopAsyncIteration

    def _new_speech(self, sentence: Sentence, index: int, pause: float) -> AsyncSentence:
        return AsyncSentence(sentence, index, pause)

    def _weigh(self, rate: int = 0) -> None:
        """Tell how much audio waits to be read; `rate` is that of the newest."""
        self._bytes_of_second = 4 * rate or self._bytes_of_second
        size = 0 if self._closed else round(self._unread * self._bytes_of_second)
        self._keep(size - self._kept)
        self._kept = size

    def _advance(self) -> None:
        self._start_tasks()
        self._changed.set()

    def _start_tasks(self) -> None:
        """Start the sentences that the plan allows now."""
        if not self._closed:
            for speech in self._due():
                speech.task = asyncio.create_task(self._make(speech))

    async def _make(self, speech: AsyncSentence) -> None:
        try:
            again = True
            while again:
                speech.speech = spoken = speech.begin(self._speaker, self._arguments(speech))
                try:
                    async for chunk in spoken:
                        speech.put(chunk)
                        self._weigh(chunk.sample_rate)
                        self._changed.set()
                finally:
                    spoken.close()
                again = self._end(speech, spoken.info)
        except Exception as error:  # of any kind; the reader of this sentence raises it
            self._fail(speech, error)
        self._advance()
