"""A speech of either client."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
from numpy.typing import NDArray
from voice_clone_words.words import Word

from .. import responses
from ..backends import is_cancelled, now
from ..errors import BrokenStream, Cancelled, InvalidArgument, VoiceCloneError
from ..responses import SpeechReader
from ..servers.servers import Call
from ..types import Chunk, SpeechStatus
from .progress import Progress

if TYPE_CHECKING:
    from ..word_times import AsyncWordTimes


class SpeechBase:
    """What a speech of either client says of itself."""

    _reader: SpeechReader
    _progress: Progress
    _times: AsyncWordTimes | None = None

    @property
    def info(self) -> Mapping[str, Any] | None:
        """The latest info of the server on this speech; at the end: frames, `cache` status, milliseconds by stage."""
        return self._reader.info

    @property
    def finish_reason(self) -> str | None:
        """How the speech ended, None before its end: `stop`, the model said the text; `length`, it has `max_frames`
        frames; `budget` or `runaway`, the model missed the end of the text; `text_left`, it ended before it had read
        all of it; `text_timeout`, the rest of a text that was being written did not come in time."""
        return self._reader.finish_reason

    @property
    def whole(self) -> bool:
        """Whether all chunks were read and the speech ended with `stop` or `length`."""
        return self._reader.whole

    @property
    def status(self) -> SpeechStatus:
        """How it goes, or how it ended, and its times."""
        return self._progress.status(self.finish_reason)

    @property
    def words(self) -> list[Word]:
        """The words whose times are known, in order; all of them once the speech was read to its end. It needs the
        option `words`."""
        return self._word_times.words

    def heard(self, seconds: float) -> str:
        """What of the text is heard when so many seconds of the speech were played, which is what the player's clock
        says less what its device holds. It needs the option `words`; see `WordTimes.heard`."""
        return self._word_times.heard(seconds)

    @property
    def _word_times(self) -> AsyncWordTimes:
        if self._times is None:
            raise InvalidArgument("the speech has no times of words: give `words` true")
        return self._times


class AsyncSpeech(SpeechBase, AsyncIterator[Chunk]):
    """A speech while the server makes it: an asynchronous iterator of its chunks; see `Speech`.

    Cancelling the task that waits for a chunk stops the speech on the server too.

    Args:
        call: the messages of its stream.
        began: when it was asked for, on `time.monotonic`.
        reader: makes chunks of the messages.
    """

    def __init__(self, call: Call | None, began: float, reader: SpeechReader) -> None:
        self._call: Any = call
        self._reader = reader
        self._closed = False
        self._progress = Progress(began)

    def follow(self, times: AsyncWordTimes) -> None:
        """Find out when the words are spoken; before the first chunk is read."""
        self._times = times

    async def __anext__(self) -> Chunk:
        try:
            chunk = self._progress.took(await self._next())
            return chunk if self._times is None else self._times.took(chunk)
        except StopAsyncIteration:
            if self._times is not None:
                await self._times.wait()
            raise
        except asyncio.CancelledError:
            self._progress.cancel()
            raise
        except VoiceCloneError as error:
            self._progress.fail(error)
            raise

    async def _next(self) -> Chunk:
        try:
            while not self._closed:
                chunk = self._reader.chunk(await self._call.next())
                if chunk is not None:
                    return chunk
        except StopAsyncIteration:
            self._reader.end()
            self._closed = True  # nothing is left to wait for
            raise
        except asyncio.CancelledError:
            if not self._closed or is_cancelled():  # the waiting task was cancelled, not the speech alone
                raise
        except grpc.RpcError as error:
            if not self._closed:
                raise self._call.error_of(error) from None
        except (BrokenStream, responses.MarkIgnored) as error:
            self._progress.fail(error)
            self.close()
            raise
        except VoiceCloneError:
            await self._let_end()
            raise
        if self._reader.finished:
            raise StopAsyncIteration
        raise Cancelled("the speech was closed before its end")

    async def read(self) -> tuple[NDArray[np.float32], int]:
        """The samples [n] of all chunks that were not iterated yet, and their rate in Hz; waits for the end."""
        samples = responses.Samples()
        async for chunk in self:
            samples.add(chunk)
        return samples.all(), self._reader.sample_rate

    def close(self) -> None:
        """Stop the speech, from any thread. Chunks that were not read are lost; who waits for one gets `Cancelled`."""
        self._closed = True
        self._progress.cancel()
        self._call.cancel()

    async def __aenter__(self) -> AsyncSpeech:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader.finished and not self._closed:  # the last chunk is here, perhaps not yet the stream's end
            await self._let_end()
        self.close()

    async def _let_end(self) -> None:
        await self._call.let_end()


class Speech(SpeechBase, Iterator[Chunk]):
    """A speech while the server makes it: an iterator of its chunks.

    The request is sent before the first chunk is read; an error of the server is raised with the first chunk. `close`
    or the end of a `with` block stops the server's work early. A missing chunk raises `BrokenStream`, so a speech that
    was iterated to its end has all that the model made. The model may have missed the end of the text, which is rare:
    then `whole` is False and, with `require_whole`, `Incomplete` is raised after the last chunk.

    Args:
        speech: that waits by `THREADS`.
    """

    def __init__(self, speech: AsyncSpeech) -> None:
        self._speech = speech
        self._reader, self._progress, self._times = speech._reader, speech._progress, speech._times
        weakref.finalize(self, speech.close)  # threads that make it do not know this object, so it can be forgotten

    def __next__(self) -> Chunk:
        try:
            return now(self._speech.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def read(self) -> tuple[NDArray[np.float32], int]:
        """The samples [n] of all chunks that were not iterated yet, and their rate in Hz; waits for the end.

        Look at `whole` afterwards, or ask for `Incomplete` with `require_whole`.
        """
        return now(self._speech.read())

    def close(self) -> None:
        """Stop the speech, from any thread. Chunks that were not read are lost; who waits for one gets `Cancelled`.

        A thread that waits for the iterator of a text ends when that has a piece or its end.
        """
        self._speech.close()

    def __enter__(self) -> Speech:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now(self._speech.__aexit__(kind, error, trace))
