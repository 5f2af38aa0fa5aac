"""uvicorn's protocols with timeouts for incomplete requests and for clients that do not read, and with small steps.

uvicorn parses all that asyncio has read, up to 256 KiB, in one go, and nothing else runs meanwhile. As chunks of one
byte this would take a third of a second.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from .errors import HTTPFailure
from .heads import check_head, in_origin_form
from .listeners import WatchedTransport

READ_BYTES = 4096
"""What is read from a connection at once."""
HEAD_BYTES = 16 << 10
"""Of the head of a request, and of the trailers of its body."""
MAX_FRAGMENTS = 4096
"""Frames of one WebSocket message; small chunks of one body."""
SMALL_CHUNK = 64
"""Bytes of a chunk, on average over its body."""
TEXT_BYTES = 64 << 10
"""Of a WebSocket message that can only be a piece of text."""
DRAIN_SECONDS = 5.0


class _Connection(h11.Connection):
    """Requests whose target is a path, and whose bodies do not come in countless small chunks."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
            return in_origin_form(event)
        if isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._bytes += len(event.data)
            if self._chunks > MAX_FRAGMENTS and self._bytes < SMALL_CHUNK * self._chunks:
                raise h11.RemoteProtocolError("too many small chunks")
        return event


class TimedProtocol(H11Protocol):
    """A connection that is closed if a request stays incomplete, or its client reads nothing; uvicorn keeps it.

    Args:
        stall_seconds: after which a client that reads nothing loses it, also as a WebSocket.
        head_seconds: for the head of a request, from the connection or from the first byte of the head.
        body_seconds: for its body.
        **of_uvicorn: the arguments of uvicorn's protocols.
    """

    def __init__(self, stall_seconds: float, head_seconds: float, body_seconds: float, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._stall_seconds = stall_seconds
        self.conn = _Connection(h11.SERVER, HEAD_BYTES)
        self._seconds = {h11.IDLE: head_seconds, h11.SEND_BODY: body_seconds}
        self._phase: Any = None  # of the request, in h11's terms; None after the change to another protocol
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.max_size = READ_BYTES  # type: ignore[attr-defined] # an attribute of asyncio's own transports
        watched = WatchedTransport(transport, self._stall_seconds, self._breaks_off)
        super().connection_made(watched)  # type: ignore[arg-type]
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_limit()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read, and close the connection; where an answer has begun, only close it."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _breaks_off(self) -> bool:
        """Whether an answer is under way whose end HTTP/1.0 shows by the end of the connection alone."""
        return self.conn.our_state is h11.SEND_BODY and self.conn.their_http_version == b"1.0"

    def _watch(self) -> None:
        phase = self.conn.their_state if self.transport.get_protocol() is self else None
        if phase == self._phase:
            return
        self._end_limit()
        self._phase = phase
        if phase in self._seconds:
            self._limit = self.loop.call_later(self._seconds[phase], self.transport.close)

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _should_upgrade(self) -> bool:
        # Only a GET with a valid head opens a WebSocket. uvicorn would upgrade any other request too, and never answer
        # it; so these are left to the application, which refuses them.
        try:
            check_head(self.scope)
        except HTTPFailure:
            return False
        return self.scope["method"] == "GET" and super()._should_upgrade()


class FairWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket that is closed if a message comes in too many frames, is not UTF-8, or, on some paths, is no piece of
    text.

    A connection that is closed because of what it sent goes on reading for a moment: one that is closed with unread
    bytes may lose the reason.

    Args:
        texts_only: how the paths begin whose messages are limited to `TEXT_BYTES`.
        **of_uvicorn: the arguments of uvicorn's protocols.
    """

    _fragments = 0
    _failed = False

    def __init__(self, texts_only: tuple[str, ...], **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._texts_only = texts_only

    def data_received(self, data: bytes) -> None:
        if not self._failed:
            super().data_received(data)
        if not self.handshake_initiated:  # uvicorn leaves a connection open whose first request it cannot read
            self.transport.close()

    def handle_parser_exception(self) -> None:
        """End the connection, with the reason."""
        if self._failed or self.conn.close_sent is None:
            return
        self._failed = self.close_sent = True
        closing = self.conn.close_sent
        self.queue.put_nowait({"type": "websocket.disconnect", "code": closing.code, "reason": closing.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.loop.call_later(DRAIN_SECONDS, self.transport.close)

    def handle_connect(self, event: Request) -> None:
        """Set the limit of the messages, then connect."""
        if unquote(event.path).startswith(self._texts_only):
            self.conn.max_message_size = min(self.conn.max_message_size or TEXT_BYTES, TEXT_BYTES)
        super().handle_connect(event)

    def handle_cont(self, event: Frame) -> None:
        """Add a frame to its message."""
        self._fragments = 0 if event.fin else self._fragments + 1
        if self._fragments < MAX_FRAGMENTS:
            super().handle_cont(event)
        elif self._fragments == MAX_FRAGMENTS:  # later ones arrived together with this one
            self.conn.fail(1008, f"a message may have {MAX_FRAGMENTS} frames")
            self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        """Hand a message on; end a connection whose text is not UTF-8, for which uvicorn would log a traceback."""
        self.frames = [b"".join(self.frames)]
        if self.curr_msg_data_type == "text":
            try:
                self.frames[0].decode()
            except UnicodeDecodeError:
                self.conn.fail(1007, "a message in a text frame is not UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()
