"""The way into a session on a WebSocket: the caller is checked, then the connection is accepted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from fastapi import WebSocket

from ..http.auth import admit
from ..http.errors import failure
from ..http.keys import Key
from ..http.origins import check_origin
from ..http.presented_keys import chosen_subprotocol
from .session import Session


async def serve(websocket: WebSocket, session: Callable[[Key], Session]) -> None:
    """Serve a WebSocket with the session of its key; what that raises refuses the connection."""
    with ExitStack() as stack:
        try:
            check_origin(websocket, websocket.app.state.settings.cors_origins)
            key = admit(websocket, "speak")
            stack.enter_context(websocket.app.state.sockets.place(websocket))
            opened = session(key)
        except Exception as error:
            refusal = failure(error, websocket.state.request_id, websocket.app.state.settings.retry_after)
            await websocket.send_denial_response(refusal.response(websocket.scope))
            return
        await websocket.accept(chosen_subprotocol(websocket.scope))
        await opened.run()
