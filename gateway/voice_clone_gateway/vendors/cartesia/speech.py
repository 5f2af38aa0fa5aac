"""Their speech over HTTP: as a file, or as events with pieces of one.

A file is sent as it is made, but for WAV, whose header must have its length.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, WebSocket

from ...audio import Encoder
from ...http.errors import HTTPFailure
from ...live.session import serve
from ...speech.forms import Form
from ...speech.response import SpeechResponse
from ..orders import TaggedRequest, speak
from ..session import refused
from ..vendor import adapter
from .generation import FIELDS, Generation, error_of, timestamps_of
from .session import CartesiaSession

router = adapter()
sockets = APIRouter()


class Events(Form):
    """Server-sent events.

    Args:
        request_id: of the request.
        context_id: what the client calls the speech.
        timed: events tell when the words are spoken.
    """

    def __init__(self, request_id: str, context_id: str | None, timed: bool) -> None:
        super().__init__(timed=timed)
        self._id = request_id
        self._context = {} if context_id is None else {"context_id": context_id}
        self._since = time.monotonic()  # the latest piece

    def media_type(self, encoder: Encoder) -> str:
        return "text/event-stream; charset=utf-8"

    def piece(self, encoder: Encoder, index: int, data: bytes) -> bytes:
        now = time.monotonic()
        step, self._since = 1000 * (now - self._since), now
        chunk = self._event("chunk", 200, False, {"data": base64.b64encode(data).decode(), "step_time": step})
        return self._told() + chunk

    def _told(self) -> bytes:
        words = self.known()
        return self._event("timestamps", 200, False, timestamps_of(words)) if words else b""

    def end(self, info: Mapping[str, Any], warnings: Sequence[str]) -> bytes:
        return self._told() + self._event("done", 200, True, {})

    def broken(self, failed: HTTPFailure, error: Exception) -> bytes | None:
        return self._event("error", failed.status_code, True, error_of(failed, self._id))

    def _event(self, kind: str, status: int, done: bool, values: Mapping[str, Any]) -> bytes:
        data = {"type": kind, "status_code": status, "done": done, **values, **self._context}
        return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


@router.post("/tts/bytes")
async def generate(body: Generation, request: Request) -> SpeechResponse:
    """`tts.generate`."""
    ignored = ["add_timestamps"] if body.add_timestamps else []
    return _speak(request, body, Form(whole=body.output_format.container == "wav"), ignored)


@router.post("/tts/sse")
async def generate_sse(body: Generation, request: Request) -> SpeechResponse:
    """`tts.generate_sse`."""
    if body.output_format.container != "raw":
        raise refused("output_format.container", "events have pieces of audio without a header: it must be raw")
    return _speak(request, body, Events(request.state.request_id, body.context_id, bool(body.add_timestamps)))


def _speak(request: Request, body: Generation, form: Form, ignored: Sequence[str] = ()) -> SpeechResponse:
    values = {"input": body.transcript, "voice": body.voice_id, **body.values()}
    return speak(request, values, FIELDS, form, [*body.ignored(), *ignored], TaggedRequest)


@sockets.websocket("/tts/websocket")
async def websocket(websocket: WebSocket) -> None:
    """`tts.websocket_connect`."""
    await serve(websocket, lambda key: CartesiaSession(websocket, key))
