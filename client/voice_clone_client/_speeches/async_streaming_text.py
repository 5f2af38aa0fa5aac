"""A speech of the client for asyncio whose text is written while it is spoken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from typing import Any

import grpc

from .._servers.async_calls import quiet_task
from .._servers.asynchronous import AsyncCall
from ..errors import InvalidArgument, Overloaded, VoiceCloneError
from ..types import Chunk
from . import appends
from .async_speech import AsyncSpeech


class AsyncStreamingTextSpeech(AsyncSpeech):
    """As `AsyncSpeech`. An error of the text's iterator stops the speech and is raised with the next chunk.

    Args:
        call: of the speech.
        began: when it was asked for, on `time.monotonic`.
        text: its pieces.
        pieces: collects them.
        timeout: seconds for the answer to a piece.
        family: says which one that is.
    """

    def __init__(
        self,
        call: AsyncCall,
        began: float,
        text: AsyncIterable[str] | Iterable[str],
        pieces: appends.Pieces,
        timeout: float | None,
        family: Callable[[], Coroutine[Any, Any, str]],
        require_whole: bool,
        mark: str | None,
    ) -> None:
        super().__init__(call, began, require_whole, mark)
        self._timeout = timeout
        self._pieces = pieces
        self._written = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks = [quiet_task(self._run(self._read(text))), quiet_task(self._run(self._send(family)))]

    async def __anext__(self) -> Chunk:
        try:
            return await super().__anext__()
        except BaseException as error:
            self._stop_text()
            if self._failure is not None and not isinstance(error, StopAsyncIteration):
                self._progress.fail(self._failure)
                raise self._failure from None
            raise

    def close(self) -> None:
        self._stop_text()
        super().close()

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._failure = error
            self._stop_text()
            self._closed = True  # a cancelled call would look like a cancelled task
            self._call.cancel()

    async def _read(self, text: AsyncIterable[str] | Iterable[str]) -> None:
        if isinstance(text, AsyncIterable):
            async for piece in text:
                self._write(piece)
        else:
            for piece in text:
                self._write(piece)
                await asyncio.sleep(0)
        self._pieces.end()
        self._written.set()

    def _write(self, piece: object) -> None:
        if not isinstance(piece, str):
            raise InvalidArgument(f"a piece of text must be a string, not {type(piece).__name__}")
        self._pieces.write(piece)
        self._written.set()

    async def _send(self, family: Callable[[], Coroutine[Any, Any, str]]) -> None:
        name = await family()
        taken = True
        while taken and not self._pieces.done:
            while not self._pieces.waiting:
                self._written.clear()
                await self._written.wait()
            taken = await self._answer(self._pieces.next(name))
        self._stop_text()

    async def _answer(self, request: Any) -> bool:
        """Whether more text is taken after this piece, which is sent until the server has room for it."""
        while True:
            try:
                messages = self._call.beside(request, self._timeout)
                answers = [appends.still_taken(message) async for message in messages]
                return all(answers)
            except grpc.RpcError as error:
                raise self._call.error_of(error) from None
            except Overloaded:
                await asyncio.sleep(appends.RETRY_SECONDS)
            except VoiceCloneError:
                if self._reader.finished:
                    return False
                raise

    def _stop_text(self) -> None:
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
