"""Their speech: over HTTP, and on WebSockets whose messages `session` and `turns` describe.

A file is sent as it is made, a WAV, too, as they do it.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, WebSocket
from pydantic import Field

from ...http.errors import HTTPFailure
from ...live.session import serve
from ...services import services_of
from ...speech.response import SpeechResponse
from ..orders import Lenient, speak
from ..vendor import adapter
from .formats import Spoken, format_of
from .session import DeepgramSession, configure
from .turns import TurnsSession

router = adapter()
sockets = APIRouter()
FIELDS = {"input": "text", "voice": "model"}
"""Their names of our fields."""


class Options(Lenient):
    """The query of the URL. `model` is the voice, as with Deepgram."""

    model: str | None = None
    encoding: str | None = None
    container: str | None = None
    sample_rate: int | None = None
    bit_rate: Annotated[int, Field(gt=0)] | None = None
    speed: float | None = None
    callback: str | None = None
    expressivity: str | None = None
    """Nothing here has this effect."""


class Text(Lenient):
    """The body."""

    text: Annotated[str, Field(min_length=1)]


@router.post("/v1/speak")
@router.post("/v2/speak")
async def generate(options: Annotated[Options, Query()], body: Text, request: Request) -> SpeechResponse:
    """`speak.v1.audio.generate` and `speak.v2.audio.generate`."""
    if options.callback is not None:
        raise HTTPFailure(400, "callback: audio is sent as the answer alone; leave it out", "unsupported")
    values = {
        "input": body.text,
        "voice": options.model,
        "speed": options.speed,
        **format_of(options.encoding, options.container, options.sample_rate, options.bit_rate),
    }
    form = Spoken(options.model or services_of(request).settings.default_voice, len(body.text))
    ignored = ["expressivity"] if options.expressivity not in (None, "0") else []
    return speak(request, values, FIELDS, form, ignored)


@sockets.websocket("/v1/speak")
async def speak_on_socket(websocket: WebSocket) -> None:
    """`speak.v1.connect`."""
    await serve(websocket, lambda key: DeepgramSession(websocket, key, configure(websocket)))


@sockets.websocket("/v2/speak")
async def speak_in_turns(websocket: WebSocket) -> None:
    """`speak.v2.connect`."""
    await serve(websocket, lambda key: TurnsSession(websocket, key, configure(websocket)))
