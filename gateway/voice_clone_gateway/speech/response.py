"""A speech as the answer to an HTTP request: streamed, or as a whole file."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send
from voice_clone_client import Chunk, Incomplete
from voice_clone_client.long_text.speaker import Speech

from ..audio import Encoder
from ..http.account import Answer, Item
from ..http.connection import ClientGone, while_connected
from ..http.errors import FIELDS, HTTPFailure, failure
from ..http.keys import Key
from ..schemas import SpeechRequest
from ..services import services_of
from .audited import audited, audited_result
from .forms import Form
from .synthesis import Order, open_speech
from .synthesis import encoder as encoder_of

log = logging.getLogger(__name__)

_SHOWN = 32  # segments in a header: clients refuse longer ones


class SpeechResponse(Response):
    """The answer to one request. It begins with the first chunk; an error before it has an HTTP status.

    A later error breaks the answer off as its form says. A missed end is such an error, unless the caller allows it.

    Args:
        request: admitted.
        payload: what to speak.
        form: of the answer.
        warnings: sentences: what was ignored or replaced before.
        theirs: what the caller's API calls fields of `SpeechRequest`, in errors.
    """

    def __init__(
        self,
        request: Request,
        payload: SpeechRequest,
        form: Form | None = None,
        warnings: Sequence[str] = (),
        theirs: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._theirs = theirs
        self._services = services_of(request)
        self._id: str = request.state.request_id
        self._key: Key = request.state.key
        self._began: float = request.state.began
        self._held: Item = request.state.held
        self._answer_bytes = Answer(self._held, self._services.settings.max_answer_bytes)
        self._request_headers = request.headers
        self._path: str = request.scope["route"].path
        self._payload = payload
        self._form = form or Form()
        self._began_audio = False
        self._warnings = tuple(warnings)
        self._spoken: Speech | None = None
        self._statement: str | None = None
        self._entry: dict[str, Any] = {}  # of the audit log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services, asked = self._services, audited(self._key, self._payload)
        characters = len(self._payload.input)
        with (
            services.statuses.follow(self._key, self._id, self._began) as self._progress,
            services.audit.act(self._key, self._id, "speech", **asked, characters=characters) as self._entry,
            services.traces.speech(f"POST {self._path}", self._request_headers, self._began, self._id) as self._trace,
        ):
            try:
                await self._speak(receive, send)
            except Exception as error:
                raise self._failed(error) from None

    async def _speak(self, receive: Receive, send: Send) -> None:
        try:
            with self._running(), self._services.listeners.waiting(self):
                end = await while_connected(receive, self._answer(send))
            for message in end:  # after the place in the gate is free for the client's next request
                await send(message)
        except ClientGone as gone:
            self._entry["outcome"] = gone.slug
            self._progress.cancel()
            log.info("request %s: the client disconnected after %.2f s of audio", self._id, self._progress.seconds)

    def _failed(self, error: Exception) -> HTTPFailure:
        """The answer to an error, with which the speech has ended."""
        fields = {name: self._theirs.get(field, field) for name, field in FIELDS.items()}
        failed = failure(error, self._id, self._services.settings.retry_after, fields)
        self._progress.fail(failed, getattr(error, "finish_reason", None))
        self._trace.fail(failed.body()["error"]["code"])
        return failed

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Count the speech as a running one."""
        metrics = self._services.metrics
        try:
            with self._key.gate.pass_through(), self._services.gate.pass_through(), metrics.live.track_inprogress():
                yield
        except Exception as error:
            metrics.count_failed(error, self._began_audio or isinstance(error, Incomplete))
            raise
        finally:
            metrics.audio_seconds.inc(self._progress.seconds)

    async def _answer(self, send: Send) -> list[Message]:
        """Send all messages but the last ones, which are returned."""
        whole = self._form.whole
        spoken, ordered = await open_speech(
            self._services,
            self._key,
            self._payload,
            self._held.add,
            spare=self._held.add_spare,
            hold=whole,
            timed=self._form.timed,
            headers=self._trace.headers,
        )
        self._spoken, self._warnings = spoken, (*self._warnings, *ordered.warnings)
        self._trace.asked()
        try:
            return await (self._whole(spoken, ordered) if whole else self._stream(spoken, ordered, send))
        finally:
            spoken.close()
            if ordered.words is not None:
                ordered.words.close()
            self._trace.end(spoken.info, self._progress.seconds)
            self._services.metrics.count_mark(self._key, spoken.info)
            self._entry |= audited_result(spoken.info, self._progress.seconds)

    @property
    def info(self) -> Mapping[str, Any]:
        return dict((self._spoken.info if self._spoken else None) or {})

    async def _whole(self, spoken: Speech, ordered: Order) -> list[Message]:
        encoder, pieces = await self._begin(spoken, ordered, streaming=False)
        data = b""
        async for data in pieces:  # the last piece is the file
            if not data:
                self._answer_bytes.has(encoder.size)
        client = self._services.clients.of(self._key)
        self._answer_bytes.has(len(data))
        kind, sign = encoder.format.base_type, self._services.signing.signed
        data = await sign(data, kind, ordered.family, spoken.info, client, self._held)
        info = self.info
        await self._know_rest(ordered)
        data = self._form.piece(encoder, 0, data) + self._form.end(info, self._warnings)
        self._answer_bytes.has(len(data))
        self._progress.finish(info.get("finish_reason"), info.get("segments"))
        headers = {"content-type": self._form.media_type(encoder), "content-length": str(len(data))}
        return [self._start(headers, spoken), body_message(data, more=False)]

    async def _stream(self, spoken: Speech, ordered: Order, send: Send) -> list[Message]:
        encoder, pieces = await self._begin(spoken, ordered, streaming=True)
        live = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nginx buffers without the second one
        await send(self._start({"content-type": self._form.media_type(encoder), **live}, spoken))
        self._services.metrics.first_audio.observe(time.monotonic() - self._began)
        try:
            index = 0
            async for piece in pieces:
                if piece:
                    await send(body_message(self._form.piece(encoder, index, piece)))
                    index += 1
            await self._know_rest(ordered)
        except Exception as error:
            self._services.metrics.count_failed(error, began=True)
            failed = self._failed(error)
            code = self._entry["outcome"] = failed.body()["error"]["code"]
            log.warning("request %s broke off after %.2f s of audio: %s", self._id, self._progress.seconds, code)
            end = self._form.broken(failed, error)
            return [] if end is None else [body_message(end, more=False)]  # without an end the web server breaks it off
        info = self.info
        self._progress.finish(info.get("finish_reason"), info.get("segments"))
        return [body_message(self._form.end(info, self._warnings), more=False)]

    async def _begin(self, spoken: Speech, ordered: Order, streaming: bool) -> tuple[Encoder, AsyncIterator[bytes]]:
        """The encoder and its output; returns after the first chunk of the speech."""
        first = await anext(spoken)
        self._began_audio = True
        self._services.listeners.heard(self)
        self._progress.first_audio()
        self._trace.first_audio(spoken.info)
        self._statement = self._services.signing.statement(ordered.family, spoken.info)
        rate, comment = first.sample_rate, self._statement
        encoder = encoder_of(self._payload, rate, ordered.speed, streaming=streaming, comment=comment)

        def know(chunk: Chunk) -> None:
            if ordered.words is not None:
                self._form.know(ordered.words.take(chunk))

        async def pieces() -> AsyncIterator[bytes]:
            know(first)
            yield await encoder.encode_aside(first.samples)
            self._progress.seconds = encoder.seconds
            async for chunk in spoken:
                know(chunk)
                yield await encoder.encode_aside(chunk.samples)
                self._progress.seconds = encoder.seconds
            yield await encoder.finish_aside()
            self._progress.seconds = encoder.seconds
            log.info("request %s: %.2f s of %s", self._id, encoder.seconds, encoder.format.name)

        return encoder, pieces()

    async def _know_rest(self, ordered: Order) -> None:
        if ordered.words is not None:
            self._form.know(await ordered.words.rest())

    def _start(self, headers: Mapping[str, str], spoken: Speech) -> Message:
        """The head of the answer, with the server's info so far: mode, cache status, seed, milliseconds by stage."""
        shown = {name: value for name, value in self.info.items() if name != "segments" or len(value) <= _SHOWN}
        info = json.dumps(shown, separators=(",", ":"))
        headers = {**headers, **self._form.headers(self._id), **self._trace.headers, "x-speech-info": info}
        if self._warnings:
            headers["x-speech-warning"] = ascii("; ".join(self._warnings))[1:-1]
        if self._statement is not None:
            headers["x-speech-provenance"] = self._statement
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        return {"type": "http.response.start", "status": 200, "headers": raw}


def body_message(data: bytes, more: bool = True) -> Message:
    """A part of an answer; whether another one follows."""
    return {"type": "http.response.body", "body": data, "more_body": more}
