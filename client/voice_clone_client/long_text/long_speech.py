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

import time
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends import END_SECONDS, EVENT_LOOP, Backend
from ..callers import in_time
from ..errors import Cancelled
from ..speeches.progress import Progress
from ..speeches.speech import AsyncSpeech, Speech
from .plan import Plan
from .speaker import Speaker
from .text import LongText, SentenceChunk, SpokenSentence


class AsyncLongSpeech(LongText, AsyncSpeech):
    """The chunks of a text, sentence by sentence; for one event loop.

    An error of a sentence is raised after the audio before it, and ends the speech. A missed end is one, if `options`
    of `begin` ask for `require_whole`. A text without a letter or digit is such an error, InvalidArgument; a blank text
    has no chunks.

    Args:
        speaker: speaks the sentences.
        plan, retried: see `LongText`.
        keep: called with the bytes of audio that wait to be read from now on, fewer or more; what it raises for more
            of them ends the speech.
        backend: how to wait.
    """

    def __init__(
        self,
        speaker: Speaker,
        plan: Plan,
        retried: Callable[[str | None], None] = lambda model: None,
        keep: Callable[[int], None] = lambda count: None,
        backend: Backend = EVENT_LOOP,
    ) -> None:
        LongText.__init__(self, plan, retried)
        self._keep = keep
        self._kept = self._bytes_of_second = 0
        self._speaker = speaker
        self._backend = backend
        self._context = Context()  # in which it was begun: that of all its calls
        self._closed = False
        self._changed = backend.changes()
        self._progress = Progress(time.monotonic())
        self._reader: Any = self  # which also says what was read of it

    def __aiter__(self) -> AsyncLongSpeech:
        return self

    async def __anext__(self) -> SentenceChunk:
        chunk = await super().__anext__()
        assert isinstance(chunk, SentenceChunk)
        return chunk

    def begin(self, options: Mapping[str, Any], deadline: float | None = None) -> None:
        self._context = copy_context()
        super().begin(options, deadline)

    async def read(self) -> tuple[NDArray[np.float32], int]:
        """The samples [n] of all chunks that were not iterated yet, and their rate in Hz; waits for the end. A sentence
        whose end the model missed is made again, as the plan says."""
        with self._changed:
            self.hold()
        return await super().read()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._weigh()
            self._progress.cancel()
            speeches = self._speeches[self._current :]
            self._changed.notify_all()
        for speech in speeches:
            speech.stop()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        last = self._speeches[-1].job if self.finished and not self._closed else None
        if last is not None:  # as in `Speech`
            await self._backend.wait(last, END_SECONDS)
        self.close()

    async def _next(self) -> SentenceChunk:
        try:
            with self._changed:
                while not self._closed:
                    if (chunk := self._take()) is not None:
                        self._weigh()
                        self._advance()
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

    def _weigh(self, rate: int = 0) -> None:
        """Tell how much audio waits to be read; `rate` is that of the newest."""
        self._bytes_of_second = 4 * rate or self._bytes_of_second
        size = 0 if self._closed else round(self._unread * self._bytes_of_second)
        self._keep(size - self._kept)
        self._kept = size

    def _advance(self) -> None:
        with self._changed:
            for speech in () if self._closed else self._due():
                speech.job = self._context.copy().run(self._backend.start, self._make(speech))
            self._changed.notify_all()

    async def _make(self, speech: SpokenSentence) -> None:
        try:
            again = True
            while again:
                with in_time(speech.index == 0):
                    spoken = self._speaker.speak(speech.sentence.text, **self._arguments(speech))
                try:
                    with self._changed:
                        speech.speech = spoken
                        if self._closed:
                            return
                    async for chunk in spoken:
                        with self._changed:
                            speech.put(chunk)
                            self._weigh(chunk.sample_rate)
                            self._changed.notify_all()
                finally:
                    spoken.close()
                with self._changed:
                    again = self._end(speech, spoken.info)
        except Exception as error:  # of any kind; the reader of this sentence raises it
            with self._changed:
                self._fail(speech, error)
        self._advance()


class LongSpeech(Speech):
    """A speech of any length, as `Speech`. `read` makes a sentence again whose end the model missed, as the plan says.

    Args:
        speech: that waits by `THREADS`.
    """

    def __init__(self, speech: AsyncLongSpeech) -> None:
        super().__init__(speech)

    def __iter__(self) -> LongSpeech:
        return self

    def __next__(self) -> SentenceChunk:
        chunk = super().__next__()
        assert isinstance(chunk, SentenceChunk)
        return chunk
