"""A speech of the client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from types import TracebackType
from typing import Any, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from . import _channel, _responses
from .errors import BrokenStream, Cancelled, VoiceCloneError
from .types import Chunk

T = TypeVar("T")


class AsyncSpeech(AsyncIterator[Chunk]):
    """A speech while the server makes it: an asynchronous iterator of its chunks; see `Speech`.

    Cancelling the task that waits for a chunk stops the speech on the server too.
    """

    def __init__(self, call: Any, require_whole: bool = False) -> None:
        self._call = call
        self._messages = aiter(call)
        self._reader = _responses.SpeechReader(require_whole)
        self._closed = False

    async def __anext__(self) -> Chunk:
        try:
            while not self._closed:
                chunk = self._reader.chunk(await anext(self._messages))
                if chunk is not None:
                    return chunk
        except StopAsyncIteration:
            self._reader.end()
            raise
        except asyncio.CancelledError:
            if not self._closed:  # the waiting task was cancelled, not the speech
                raise
        except grpc.RpcError as error:
            if not self._closed:
                raise _responses.rpc_error(error) from None
        except BrokenStream:
            self.close()
            raise
        except VoiceCloneError:
            await self._let_end()
            raise
        if self._reader.finished:
            raise StopAsyncIteration
        raise Cancelled("the speech was closed before its end")

    async def _let_end(self) -> None:
        """Wait for the end of the stream after the server's error; see `_speech._let_end`."""

        async def rest() -> None:
            async for _ in self._messages:
                pass

        try:
            await asyncio.wait_for(rest(), _channel.END_SECONDS)
        except (grpc.RpcError, asyncio.TimeoutError):
            self._call.cancel()

    async def read(self) -> tuple[NDArray[np.float32], int]:
        """The samples [n] of all chunks that were not iterated yet, and their rate in Hz; waits for the end."""
        return _responses.joined([chunk async for chunk in self]), self._reader.sample_rate

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

    def close(self) -> None:
        """Stop the speech. Chunks that were not read are lost; a task that waits gets `Cancelled`."""
        self._closed = True
        self._call.cancel()

    async def __aenter__(self) -> AsyncSpeech:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LaterCall:
    """A call that begins when its coroutine returns it; has the part of a call's interface that `AsyncSpeech` uses."""

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self._call = quiet_task(call)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for message in await self._call:
            yield message

    def cancel(self) -> None:
        """Cancel the call, or its beginning."""
        if not self._call.cancel() and not self._call.cancelled() and self._call.exception() is None:
            self._call.result().cancel()


def quiet_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task whose error asyncio does not log if no other task awaits it."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task
