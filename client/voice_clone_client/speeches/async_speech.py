"""A speech of the client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from .. import responses
from ..errors import BrokenStream, Cancelled, VoiceCloneError
from ..servers.async_calls import is_cancelled, let_end
from ..servers.asynchronous import AsyncCall
from ..types import Chunk, SpeechStatus
from .progress import Progress


class AsyncSpeech(AsyncIterator[Chunk]):
    """A speech while the server makes it: an asynchronous iterator of its chunks; see `Speech`.

    Cancelling the task that waits for a chunk stops the speech on the server too.
    """

    def __init__(self, call: AsyncCall, began: float, reader: responses.SpeechReader) -> None:
        self._call = call
        self._messages = aiter(call)
        self._reader = reader
        self._closed = False
        self._progress = Progress(began)

    async def __anext__(self) -> Chunk:
        try:
            return self._progress.took(await self._next())
        except asyncio.CancelledError:
            self._progress.cancel()
            raise
        except VoiceCloneError as error:
            self._progress.fail(error)
            raise

    async def _next(self) -> Chunk:
        try:
            while not self._closed:
                chunk = self._reader.chunk(await anext(self._messages))
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
        return samples.all(), self._sample_rate

    @property
    def _sample_rate(self) -> int:
        return self._reader.sample_rate

    @property
    def info(self) -> Mapping[str, Any] | None:
        """The latest info of the server on this speech."""
        return self._reader.info

    @property
    def finish_reason(self) -> str | None:
        """How the speech ended; see `Speech.finish_reason`."""
        return self._reader.finish_reason

    @property
    def whole(self) -> bool:
        """Whether all chunks were read and the speech ended with `stop` or `length`."""
        return self._reader.whole

    @property
    def status(self) -> SpeechStatus:
        """How it goes, or how it ended, and its times."""
        return self._progress.status(self.finish_reason)

    def close(self) -> None:
        """Stop the speech. Chunks that were not read are lost; a task that waits gets `Cancelled`."""
        self._closed = True
        self._progress.cancel()
        self._call.cancel()

    async def __aenter__(self) -> AsyncSpeech:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader.finished and not self._closed:  # as in `Speech`
            await self._let_end()
        self.close()

    async def _let_end(self) -> None:
        await let_end(self._call, self._messages)
