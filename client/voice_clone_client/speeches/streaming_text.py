"""A speech whose text is written while it is spoken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any

import grpc
from voice_clone_text.parts import Part, WrittenText

from .. import responses
from ..backends import EVENT_LOOP, Backend, Changes, Job, each
from ..errors import Cancelled, Overloaded, VoiceCloneError
from ..servers.servers import Call
from ..types import Chunk
from . import appends
from .parts_reader import PartChunk, PartsReader
from .speech import AsyncSpeech


class PartSpeech(AsyncSpeech):
    """The speech of one part, whose text a job sends.

    Args:
        call: of the speech.
        began: when it was asked for, on `time.monotonic`.
        part: its text, which grows.
        text: to which it belongs; it learns what the server says of the model.
        changed: notified when the text grows.
        timeout: seconds for the answer to a piece.
        family: says which one that is.
        mark: see `SpeechReader`.
    """

    def __init__(
        self,
        call: Call,
        began: float,
        part: Part,
        text: WrittenText,
        changed: Changes,
        timeout: float | None,
        family: Callable[[], Awaitable[str]],
        mark: str | None,
    ) -> None:
        super().__init__(call, began, responses.SpeechReader(False, mark))
        self.part = part
        self._text = text
        self._changed = changed
        self._timeout = timeout
        self._pieces = appends.Pieces(part)
        self._over = False  # no more text is wanted
        self._failure: BaseException | None = None
        self._sending = call.backend.start(self._run(family))

    async def __anext__(self) -> Chunk:
        try:
            return await super().__anext__()
        except BaseException as error:
            self._stop_text()
            if self._failure is not None and not isinstance(error, StopAsyncIteration):
                raise self._failure from None
            raise

    async def end(self) -> None:
        """Note that the last chunk was read."""
        self._stop_text()
        await self._let_end()

    def close(self) -> None:
        self._stop_text()
        super().close()

    async def _run(self, family: Callable[[], Awaitable[str]]) -> None:
        try:
            await self._send(await family())
        except Exception as error:
            if not self._over:
                self._failure = error
                self._closed = True  # a cancelled call would look like a cancelled task
                self._call.cancel()

    async def _send(self, family: str) -> None:
        taken = True
        while taken and not self._pieces.done:
            with self._changed:
                await self._changed.wait_for(lambda: self._over or self._pieces.waiting)
                if self._over:
                    return
                request = self._pieces.next(family)
            taken = await self._answer(request)

    async def _answer(self, request: Any) -> bool:
        """Send a piece, again and again until the server has room for it. Returns whether it takes more text."""
        while not self._over:
            try:
                messages = await self._call.beside(request, self._timeout)
                answers = [said for message in messages if (said := appends.answer(message)) is not None]
            except grpc.RpcError as error:
                raise self._call.error_of(error) from None
            except Overloaded:
                await self._call.backend.sleep(appends.RETRY_SECONDS)
            except VoiceCloneError:
                if self._reader.finished:
                    return False
                raise
            else:
                with self._changed:
                    for said in answers:
                        self._text.learn(said.get("part_characters"))
                return all(map(appends.takes_more, answers))
        return False

    def _stop_text(self) -> None:
        self._sending.cancel()
        with self._changed:
            self._over = True
            self._changed.notify_all()


class AsyncStreamingTextSpeech(AsyncSpeech):
    """As `AsyncSpeech`. An error of the text's iterator stops the speech and is raised with the next chunk.

    Args:
        begin: asks the server for a part.
        began: when the speech was asked for, on `time.monotonic`.
        reader: joins the parts of its text.
        changed: notified when the text grows; only in its block is the text read or written.
        backend: how to wait.
    """

    _reader: PartsReader

    def __init__(
        self,
        begin: Callable[[Part], PartSpeech],
        began: float,
        reader: PartsReader,
        changed: Changes,
        backend: Backend = EVENT_LOOP,
    ) -> None:
        super().__init__(None, began, reader)
        self._begin_part = begin
        self._backend = backend
        self._text = reader.text
        self._changed = changed
        self._text.changed = changed.notify_all
        self._failure: BaseException | None = None
        self._reading: Job[None] | None = None
        self._current: PartSpeech | None = None
        self._go_on()  # the first part is there before its text

    def read_from(self, text: AsyncIterable[str] | Iterable[str]) -> None:
        """Take the text from an iterator, in the background."""
        self._reading = self._backend.start(self._read(text))

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
        with self._changed:
            await self._changed.wait_for(lambda: self._text.waiting or self._text.over or self._closed)
        self._go_on()
        return self._current is not None or self._closed

    async def _chunk_of(self, current: PartSpeech) -> PartChunk | None:
        """Read the next chunk of a part. None if the part begins again, because the server was full."""
        try:
            chunk = await anext(current)
        except VoiceCloneError as error:
            if self._closed or not self._reader.may_wait(current.part, current.status.seconds, error):
                raise self._reader.failed(error) from None
            current.close()
            await self._backend.sleep(appends.RETRY_SECONDS)
            current.part.renew()
            self._begin(current.part)
            return None
        with self._changed:
            taken = self._reader.take(current.part, chunk)
        if chunk.final:
            await current.end()
            self._current = None
            if not taken.final:
                self._go_on()
        return taken

    def _go_on(self) -> None:
        """Begin the next part, if its text is there."""
        with self._changed:
            part = None if self._closed else self._reader.begin()
        if part is not None:
            self._begin(part)

    def _begin(self, part: Part) -> None:
        begun = self._begin_part(part)
        with self._changed:
            self._current, closed = begun, self._closed
        if closed:
            begun.close()

    async def _read(self, text: AsyncIterable[str] | Iterable[str]) -> None:
        try:
            async for piece in each(text):
                with self._changed:
                    if self._closed:
                        return
                    self._text.write(appends.checked(piece))
                    if self._times is not None:
                        self._times.write(piece)
                await self._backend.sleep(0)
            with self._changed:
                self._text.end()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # of any kind: the reader raises it
            if not self._closed:
                self._failure = error
            self._reading = None  # it ends by itself
            self._stop()

    def _stop(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._reading is not None:
            self._reading.cancel()
        if self._current is not None:
            self._current.close()

    async def _let_end(self) -> None:
        """Do nothing: the parts have ended one by one."""
