"""A speech of the client for asyncio whose text is written while it is spoken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from typing import Any

import grpc
from voice_clone_text.parts import Part, WrittenText

from .. import responses
from ..errors import Cancelled, Overloaded, VoiceCloneError
from ..servers.async_calls import quiet_task
from ..servers.asynchronous import AsyncCall
from ..types import Chunk
from . import appends
from .async_speech import AsyncSpeech
from .parts_reader import PartChunk, PartsReader
from .speech_base import SpeechBase


class Bell:
    """Wakes all tasks that wait for something; for one event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake all that wait."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait_for(self, there: Callable[[], bool]) -> None:
        """Wait until it is there."""
        while not there():
            await self._event.wait()


class AsyncPartSpeech(AsyncSpeech):
    """The speech of one part, whose text a task sends.

    Args:
        call: of the speech.
        began: when it was asked for, on `time.monotonic`.
        part: its text, which grows.
        text: to which it belongs; it learns what the server says of the model.
        changed: rung when the text grows.
        timeout: seconds for the answer to a piece.
        family: says which one that is.
        mark: see `SpeechReader`.
    """

    def __init__(
        self,
        call: AsyncCall,
        began: float,
        part: Part,
        text: WrittenText,
        changed: Bell,
        timeout: float | None,
        family: Callable[[], Coroutine[Any, Any, str]],
        mark: str | None,
    ) -> None:
        super().__init__(call, began, responses.SpeechReader(False, mark))
        self.part = part
        self._text = text
        self._changed = changed
        self._timeout = timeout
        self._pieces = appends.Pieces(part)
        self._failure: BaseException | None = None
        self._sending = quiet_task(self._run(family))

    async def __anext__(self) -> Chunk:
        try:
            return await super().__anext__()
        except BaseException as error:
            self._sending.cancel()
            if self._failure is not None and not isinstance(error, StopAsyncIteration):
                raise self._failure from None
            raise

    async def end(self) -> None:
        """Note that the last chunk was read."""
        self._sending.cancel()
        await self._let_end()

    def close(self) -> None:
        self._sending.cancel()
        super().close()

    async def _run(self, family: Callable[[], Coroutine[Any, Any, str]]) -> None:
        try:
            await self._send(await family())
        except Exception as error:
            self._failure = error
            self._closed = True  # a cancelled call would look like a cancelled task
            self._call.cancel()

    async def _send(self, family: str) -> None:
        taken = True
        while taken and not self._pieces.done:
            await self._changed.wait_for(lambda: self._pieces.waiting)
            taken = await self._answer(self._pieces.next(family))

    async def _answer(self, request: Any) -> bool:
        """Send a piece, again and again until the server has room for it. Returns whether it takes more text."""
        while True:
            try:
                messages = self._call.beside(request, self._timeout)
                answers = [said async for message in messages if (said := appends.answer(message)) is not None]
            except grpc.RpcError as error:
                raise self._call.error_of(error) from None
            except Overloaded:
                await asyncio.sleep(appends.RETRY_SECONDS)
            except VoiceCloneError:
                if self._reader.finished:
                    return False
                raise
            else:
                for said in answers:
                    self._text.learn(said.get("part_characters"))
                return all(map(appends.takes_more, answers))


class AsyncStreamingTextSpeech(AsyncSpeech):
    """As `AsyncSpeech`. An error of the text's iterator stops the speech and is raised with the next chunk.

    Args:
        begin: asks the server for a part.
        began: when the speech was asked for, on `time.monotonic`.
        reader: joins the parts of its text.
        changed: rung when the text grows.
    """

    _reader: PartsReader

    def __init__(self, begin: Callable[[Part], AsyncPartSpeech], began: float, reader: PartsReader, changed: Bell):
        SpeechBase.__init__(self, None, began, reader)
        self._begin_part = begin
        self._text = reader.text
        self._changed = changed
        self._text.changed = changed.ring
        self._failure: BaseException | None = None
        self._reading: asyncio.Task[None] | None = None
        self._current: AsyncPartSpeech | None = None
        self._go_on()

    def read_from(self, text: AsyncIterable[str] | Iterable[str]) -> None:
        """Take the text from an iterator, in a task."""
        self._reading = quiet_task(self._read(text))

    async def __anext__(self) -> Chunk:
        try:
            return await super().__anext__()
        except BaseException as error:
            self._stop()
            if self._failure is not None and not isinstance(error, StopAsyncIteration):
                self._progress.fail(self._failure)
                raise self._failure from None
            raise

    def close(self) -> None:
        self._progress.cancel()
        self._stop()

    async def _next(self) -> Chunk:
        while not self._closed:
            if self._reader.finished:
                self._reader.end()
                break
            if self._current is None and not await self._wait_for_part():
                return self._reader.last()
            chunk = None if self._current is None else await self._chunk_of(self._current)
            if chunk is not None:
                return chunk
        if self._reader.finished:
            self._closed = True
            raise StopAsyncIteration
        raise Cancelled("the speech was closed before its end")

    async def _wait_for_part(self) -> bool:
        """Begin the next part when its text is there; false if the text has ended."""
        await self._changed.wait_for(lambda: self._text.waiting or self._text.over or self._closed)
        self._go_on()
        return self._current is not None or self._closed

    async def _chunk_of(self, current: AsyncPartSpeech) -> PartChunk | None:
        """Read the next chunk of a part. None if the part begins again, because the server was full."""
        try:
            chunk = await anext(current)
        except VoiceCloneError as error:
            if self._closed or not self._reader.may_wait(current.part, current.status.seconds, error):
                raise self._reader.failed(error) from None
            current.close()
            await asyncio.sleep(appends.RETRY_SECONDS)
            current.part.renew()
            self._current = self._begin_part(current.part)
            return None
        taken = self._reader.take(current.part, chunk)
        if chunk.final:
            await current.end()
            self._current = None
            if not taken.final:
                self._go_on()
        return taken

    def _go_on(self) -> None:
        """Begin the next part, if its text is there."""
        part = None if self._closed else self._reader.begin()
        if part is not None:
            self._current = self._begin_part(part)

    async def _read(self, text: AsyncIterable[str] | Iterable[str]) -> None:
        try:
            if isinstance(text, AsyncIterable):
                async for piece in text:
                    self._text.write(appends.checked(piece))
            else:
                for piece in text:
                    self._text.write(appends.checked(piece))
                    await asyncio.sleep(0)
            self._text.end()
        except Exception as error:
            self._failure = error
            self._stop()

    def _stop(self) -> None:
        self._closed = True
        self._changed.ring()
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
        if self._current is not None:
            self._current.close()

    async def _let_end(self) -> None:
        """Do nothing: the parts have ended one by one."""
