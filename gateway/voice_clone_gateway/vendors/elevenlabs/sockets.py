"""Their WebSockets; `session` and `dialogue_session` describe the messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from anyio import fail_after
from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from ...http.auth import admit
from ...http.errors import HTTPFailure, failure
from ...http.json_bounds import parse_message
from ...http.keys import Key
from ...http.origins import check_origin
from ...http.presented_keys import presented, with_key
from ...live.session import Session, serve
from ...services import services_of
from ..session import read
from .dialogue import PATH as DIALOGUE
from .dialogue_session import DialogueSession, DialoguesSession
from .messages import Message, configure
from .session import ElevenLabsSession, MultiStreamInputSession, StreamInputSession

router = APIRouter()


@router.websocket("/v1/text-to-speech/{voice_id}/stream-input")
async def elevenlabs_stream_input(websocket: WebSocket, voice_id: str) -> None:
    """ElevenLabs' protocol for one text."""
    await _serve_elevenlabs(websocket, voice_id, StreamInputSession)


@router.websocket("/v1/text-to-speech/{voice_id}/multi-stream-input")
async def elevenlabs_multi_stream_input(websocket: WebSocket, voice_id: str) -> None:
    """ElevenLabs' protocol for several texts at once."""
    await _serve_elevenlabs(websocket, voice_id, MultiStreamInputSession)


@router.websocket(f"{DIALOGUE}/stream-input")
async def elevenlabs_dialogue(websocket: WebSocket) -> None:
    """ElevenLabs' protocol for one dialogue."""
    await _serve_elevenlabs(websocket, None, DialogueSession)


@router.websocket(f"{DIALOGUE}/multi-stream-input")
async def elevenlabs_dialogues(websocket: WebSocket) -> None:
    """ElevenLabs' protocol for several dialogues at once."""
    await _serve_elevenlabs(websocket, None, DialoguesSession)


async def _serve_elevenlabs(websocket: WebSocket, voice_id: str | None, kind: type[ElevenLabsSession[Any]]) -> None:
    def session(key: Key) -> Session:
        return kind(websocket, key, *configure(websocket, voice_id))

    if presented(websocket) is None and services_of(websocket).keys:
        await _serve_by_message(websocket, session, kind.messages)
    else:
        await serve(websocket, session)


async def _serve_by_message(websocket: WebSocket, session: Callable[[Key], Session], messages: type[Message]) -> None:
    """The key is in the first message: until then the caller is unknown, and has little time."""
    services = services_of(websocket)
    settings, sockets = services.settings, services.sockets
    with ExitStack() as place:
        try:
            check_origin(websocket, settings.cors_origins)
            place.enter_context(sockets.place(websocket))
        except HTTPFailure as refusal:
            await websocket.send_denial_response(refusal.response(websocket.scope))
            return
        await websocket.accept()
        try:
            first = await _first_message(websocket, settings.head_seconds)
            secret = read(messages, await parse_message(first)).key
            key = admit(with_key(websocket, secret or ""), "speak")
            place.close()  # that of its address
            place.enter_context(sockets.place(websocket))
            await services.idle_server.run_for(websocket)
            opened = session(key)
        except WebSocketDisconnect:
            return
        except Exception as error:
            detail = failure(error, websocket.state.request_id).body()["error"]
            with suppress(WebSocketDisconnect):
                await websocket.send_json({"message": detail["message"], "error": detail["code"], "code": 1008})
                await websocket.close(1008)
            return
        await opened.run(first)


async def _first_message(websocket: WebSocket, seconds: float) -> Mapping[str, Any]:
    """Raises WebSocketDisconnect, or HTTPFailure if none comes in this time."""
    try:
        with fail_after(seconds):
            message = await websocket.receive()
    except TimeoutError:
        text = f"the first message did not come within {seconds:g} s"
        raise HTTPFailure(408, text, "idle_timeout") from None
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect
    return message
