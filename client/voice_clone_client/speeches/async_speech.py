"""A speech of the client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

import grpc
import numpy as np
from numpy.typing import NDArray

from .. import responses
from ..errors import BrokenStream, Cancelled, VoiceCloneError
from ..servers.async_calls import is_cancelled, let_end
from ..servers.asynchronous import AsyncCall
from ..types import Chunk
from .speech_base import SpeechBase


class AsyncSpeech(SpeechBase, AsyncIterator[Chunk]):
    """A speech while the server makes it: an asynchronous iterator of its chunks; see `Speech`.

    Cancelling the task that waits for a chunk stops the speech on the server too.
    """

    def __init__(self, call: AsyncCall, began: float, reader: responses.SpeechReader) -> None:
        super().__init__(call, began, reader)
        self._messages = aiter(call)

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
