"""POST /v1/audio/speech: a text as audio: streamed raw, streamed as events, or as a whole file.

GET /v1/audio/speech/{id}: the state of a speech.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import Message, Receive, Scope, Send
from voice_clone_client import Incomplete
from voice_clone_client.long_text.speaker import Speech

from ..accounts import audited, audited_result, finish_reason, usage
from ..audio import FORMATS, Encoder
from ..http.account import Answer, Item
from ..http.auth import guarded
from ..http.connection import ClientGone, while_connected
from ..http.errors import HTTPFailure, documented, failure
from ..http.keys import Key
from ..schemas import SpeechRequest
from ..speech_statuses import SpeechStatus, SpeechStatuses
from ..synthesis import encoder as encoder_of
from ..synthesis import open_speech

log = logging.getLogger(__name__)
router = APIRouter(route_class=guarded("speak"), tags=["speech"])

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_EVENT = {
    "type": "object",
    "properties": {
        "event": {"enum": ["speech.audio.delta", "speech.audio.done", "speech.audio.error"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}
_AUDIO = {entry.base_type.partition(";")[0]: _BINARY for entry in FORMATS.values()}


class SpeechResponse(Response):
    """The answer to one request. It begins with the first chunk; an error before it has an HTTP status.

    A later error breaks a raw stream off in the middle of its chunked body, which every client distinguishes from an
    end, and ends a stream of events with the event `speech.audio.error`. A missed end is such an error, unless the
    caller allows it.
    """

    def __init__(self, request: Request, payload: SpeechRequest) -> None:
        super().__init__()
        self._app = request.app
        self._id: str = request.state.request_id
        self._key: Key = request.state.key
        self._began: float = request.state.began
        self._held: Item = request.state.held
        self._answer_bytes = Answer(self._held, request.app.state.settings.max_answer_bytes)
        self._request_headers = request.headers
        self._payload = payload
        self._began_audio = False
        self._warnings: tuple[str, ...] = ()
        self._family = ""  # that speaks
        self._statement: str | None = None
        self._entry: dict[str, Any] = {}  # of the audit log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state, asked = self._app.state, audited(self._key, self._payload)
        characters = len(self._payload.input)
        with (
            state.statuses.follow(self._key, self._id, self._began) as self._progress,
            state.audit.act(self._key, self._id, "speech", **asked, characters=characters) as self._entry,
            state.traces.speech("POST /v1/audio/speech", self._request_headers, self._began, self._id) as self._trace,
        ):
            try:
                await self._speak(receive, send)
            except Exception as error:
                raise self._failed(error) from None

    async def _speak(self, receive: Receive, send: Send) -> None:
        try:
            with self._running(), self._app.state.listeners.waiting(self):
                end = await while_connected(receive, self._answer(send))
            for message in end:  # after the place in the gate is free for the client's next request
                await send(message)
        except ClientGone as gone:
            self._entry["outcome"] = gone.slug
            self._progress.cancel()
            log.info("request %s: the client disconnected after %.2f s of audio", self._id, self._progress.seconds)

    def _failed(self, error: Exception) -> HTTPFailure:
        """The answer to an error, with which the speech has ended."""
        failed = failure(error, self._id, self._app.state.settings.retry_after)
        self._progress.fail(failed, getattr(error, "finish_reason", None))
        self._trace.fail(failed.body()["error"]["code"])
        return failed

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Count the speech as a running one."""
        metrics = self._app.state.metrics
        try:
            with self._key.gate.pass_through(), self._app.state.gate.pass_through(), metrics.live.track_inprogress():
                yield
        except Exception as error:
            metrics.count_failed(error, self._began_audio or isinstance(error, Incomplete))
            raise
        finally:
            metrics.audio_seconds.inc(self._progress.seconds)

    async def _answer(self, send: Send) -> list[Message]:
        """Send all messages but the last ones, which are returned."""
        payload, whole = self._payload, self._payload.stream is False
        spoken, ordered = await open_speech(
            self._app, self._key, payload.input, payload, self._held.add, hold=whole, headers=self._trace.headers
        )
        self._warnings, self._family = ordered.warnings, ordered.family
        self._trace.asked()
        try:
            return await (self._whole(spoken) if whole else self._stream(spoken, send))
        finally:
            spoken.close()
            self._trace.end(spoken.info, self._progress.seconds)
            self._app.state.metrics.count_mark(self._key, spoken.info)
            self._entry |= audited_result(spoken.info, self._progress.seconds)

    async def _whole(self, spoken: Speech) -> list[Message]:
        encoder, pieces = await self._begin(spoken, streaming=False)
        data = b""
        async for data in pieces:  # the last piece is the file
            if not data:
                self._answer_bytes.has(encoder.size)
        client = self._app.state.clients.of(self._key)
        self._answer_bytes.has(len(data))
        kind, sign = encoder.format.base_type, self._app.state.signing.signed
        data = await sign(data, kind, self._family, spoken.info, client, self._held)
        self._progress.finish((spoken.info or {}).get("finish_reason"))
        headers = {"content-type": encoder.media_type, "content-length": str(len(data))}
        return [self._start(headers, spoken), _body(data, more=False)]

    async def _stream(self, spoken: Speech, send: Send) -> list[Message]:
        encoder, pieces = await self._begin(spoken, streaming=True)
        events = self._payload.events
        kind = "text/event-stream; charset=utf-8" if events else encoder.media_type
        live = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nginx buffers without the second one
        await send(self._start({"content-type": kind, **live}, spoken))
        self._app.state.metrics.first_audio.observe(time.monotonic() - self._began)
        try:
            index = 0
            async for piece in pieces:
                if piece:
                    await send(_body(self._delta(encoder, index, piece) if events else piece))
                    index += 1
        except Exception as error:
            self._app.state.metrics.count_failed(error, began=True)
            failed = self._failed(error)
            detail = failed.body()["error"]
            self._entry["outcome"] = detail["code"]
            log.warning(
                "request %s broke off after %.2f s of audio: %s", self._id, self._progress.seconds, detail["code"]
            )
            if not events:
                return []  # the web server closes a connection whose body has no end
            detail |= {"code": failed.status_code, "partial_audio": True, "action": "discard"}
            detail |= {"finish_reason": finish_reason(error)}
            return [_body(_event("speech.audio.error", {"error": detail}), more=False)]
        info = dict(spoken.info or {})
        self._progress.finish(info.get("finish_reason"))
        if not events:
            return [_body(b"", more=False)]
        warned = {"warnings": self._warnings} if self._warnings else {}
        done = {"usage": usage(info), "finish_reason": info.get("finish_reason"), "info": info, **warned}
        return [_body(_event("speech.audio.done", done), more=False)]

    async def _begin(self, spoken: Speech, streaming: bool) -> tuple[Encoder, AsyncIterator[bytes]]:
        """The encoder and its output; returns after the first chunk of the speech."""
        first = await anext(spoken)
        self._began_audio = True
        self._app.state.listeners.heard(self)
        self._progress.first_audio()
        self._trace.first_audio(spoken.info)
        self._statement = self._app.state.signing.statement(self._family, spoken.info)
        encoder = encoder_of(self._payload, first.sample_rate, streaming=streaming, comment=self._statement)

        async def pieces() -> AsyncIterator[bytes]:
            yield await encoder.encode_aside(first.samples)
            self._progress.seconds = encoder.seconds
            async for chunk in spoken:
                yield await encoder.encode_aside(chunk.samples)
                self._progress.seconds = encoder.seconds
            yield await encoder.finish_aside()
            self._progress.seconds = encoder.seconds
            log.info("request %s: %.2f s of %s", self._id, encoder.seconds, encoder.format.name)

        return encoder, pieces()

    def _start(self, headers: Mapping[str, str], spoken: Speech) -> Message:
        """The head of the answer, with the server's info so far: mode, cache status, seed, milliseconds by stage."""
        info = json.dumps(dict(spoken.info or {}), separators=(",", ":"))
        headers = {**headers, **self._trace.headers, "x-speech-info": info}
        if self._warnings:
            headers["x-speech-warning"] = ascii("; ".join(self._warnings))[1:-1]
        if self._statement is not None:
            headers["x-speech-provenance"] = self._statement
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        return {"type": "http.response.start", "status": 200, "headers": raw}

    def _delta(self, encoder: Encoder, index: int, piece: bytes) -> bytes:
        return _event(
            "speech.audio.delta",
            {
                "audio": base64.b64encode(piece).decode(),
                "response_format": encoder.format.name,
                "sample_rate": encoder.sample_rate,
                "index": index,
            },
        )


@router.post(
    "/v1/audio/speech",
    response_class=Response,
    responses={
        200: {
            "description": "The audio, or (stream_format sse) events: speech.audio.delta with audio in base64, then "
            "speech.audio.done with usage and finish_reason, or speech.audio.error.",
            "headers": {
                "X-Request-ID": {
                    "description": "The id of the speech, for GET /v1/audio/speech/{speech_id}",
                    "schema": {"type": "string"},
                },
                "X-Speech-Info": {
                    "description": "JSON: mode, cache status, seed, milliseconds by stage; finish_reason for a whole "
                    "file",
                    "schema": {"type": "string"},
                },
                "X-Speech-Provenance": {
                    "description": "That the sound is synthetic, by which family, and whether it is marked; absent "
                    "where speech is neither marked nor signed",
                    "schema": {"type": "string"},
                },
                "X-Speech-Warning": {
                    "description": "What was ignored or replaced; absent if nothing was",
                    "schema": {"type": "string"},
                },
            },
            "content": {**_AUDIO, "text/event-stream": {"schema": _EVENT}},
        },
        **documented(400, 401, 403, 404, 413, 429, 500, 501, 503, 504),
    },
)
async def create_speech(payload: SpeechRequest, request: Request) -> Response:
    """Speak a text."""
    return SpeechResponse(request, payload)


@router.get("/v1/audio/speech/{speech_id}", responses=documented(400, 401, 403, 404))
async def get_speech(speech_id: str, request: Request) -> SpeechStatus:
    """The state of a speech, by the X-Request-ID of its answer; of the caller's key alone."""
    statuses: SpeechStatuses = request.app.state.statuses
    return statuses.find(request.state.key, speech_id)


def _body(data: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def _event(kind: str, values: Mapping[str, Any]) -> bytes:
    """One server-sent event of the OpenAI API."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **values})}\n\n".encode()
