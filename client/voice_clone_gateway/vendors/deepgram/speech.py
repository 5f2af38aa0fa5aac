"""Their speech: over HTTP, and on a WebSocket whose messages `session` describes."""

from __future__ import annotations

from fastapi import APIRouter, WebSocket

from ...live.connection import serve
from ..vendor import adapter
from .session import DeepgramSession, configure

router = adapter()
sockets = APIRouter()


@sockets.websocket("/v1/speak")
async def speak_on_socket(websocket: WebSocket) -> None:
    """`speak.v1.connect`."""
    await serve(websocket, lambda key: DeepgramSession(websocket, key, configure(websocket)))
