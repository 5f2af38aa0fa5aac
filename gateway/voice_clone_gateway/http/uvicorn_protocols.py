"""uvicorn's protocols with timeouts for incomplete requests and for clients that do not read, and with small steps.

uvicorn parses all that asyncio has read, up to 256 KiB, in one go, and nothing else runs meanwhile. If a client sends
this in chunks of one byte, it takes a third of a second. So less is read at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import h11
from fastapi import WebSocket
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request

from .account import Account, Full, Item
from .errors import HTTPFailure, limit_reached
from .heads import check_head, in_origin_form
from .keys import caller_of
from .limits import Bucket, seconds_for
from .listeners import WatchedTransport
from .presented_keys import out_of_query

READ_BYTES = 4096
"""The most bytes that are read from a connection at once."""
HEAD_BYTES = 16 << 10
"""The most bytes of the head of a request, and of the trailers of its body."""
MAX_FRAGMENTS = 4096
"""The most frames of one WebSocket message, and the most small chunks of one body."""
SMALL_CHUNK = 64
"""The chunks of a body are small if they have fewer bytes on average."""
TEXT_BYTES = 64 << 10
"""The most bytes of a WebSocket message that can only be a piece of text."""
DRAIN_SECONDS = 5.0
FRAMES = 200.0
"""The most frames of a WebSocket in a second, with pings and pongs; at once there may be twice as many."""
FRAMES_OF_CALLER = 1000.0
"""The same for all WebSockets of a caller together."""
SOCKETS_OF_CALLER = 256
SOCKETS = 1024
"""The most WebSockets that are open at once."""


class _Connection(h11.Connection):
    """Makes the target of each request a path without a key, and refuses bodies in too many small chunks."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
            return out_of_query(in_origin_form(event))
        if isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._bytes += len(event.data)
            if self._chunks > MAX_FRAGMENTS and self._bytes < SMALL_CHUNK * self._chunks:
                raise h11.RemoteProtocolError("too many small chunks")
        return event


class Connections:
    """The connections that are open and are no WebSockets, by address.

    Args:
        most: how many may be open. Each one is an open file, and the system limits the open files of a process.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._of_address: dict[str, dict[TimedProtocol, None]] = {}  # in the order in which they came

    def add(self, new: TimedProtocol) -> None:
        """Add a connection. If there are too many, close one of the address that has most: the oldest one that has no
        request, or else the newest one.
        """
        self._of_address.setdefault(new.address, {})[new] = None
        self._count += 1
        if self._count > self._most:
            many = max(self._of_address.values(), key=len)
            gives = next((each for each in many if each.idle), next(reversed(many)))
            self.remove(gives)
            gives.transport.close()

    def remove(self, connection: TimedProtocol) -> None:
        """Remove a connection that has ended or is a WebSocket now; do nothing if it was removed before."""
        own = self._of_address.get(connection.address, {})
        if connection in own:
            del own[connection]
            self._count -= 1
            if not own:
                del self._of_address[connection.address]


class TimedProtocol(H11Protocol):
    """A connection that is closed if a request stays incomplete, or its client reads nothing; uvicorn keeps it.

    Args:
        stall_seconds: how long a client may read nothing before the connection is closed, also as a WebSocket.
        head_seconds: for the head of a request, from the connection or from the first byte of the head.
        connections: those of the gateway.
        **of_uvicorn: the arguments of uvicorn's protocols.
    """

    address = ""
    """The caller's address, as a name."""

    def __init__(self, stall_seconds: float, head_seconds: float, connections: Connections, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._stall_seconds = stall_seconds
        self._connections = connections
        self.conn = _Connection(h11.SERVER, HEAD_BYTES)
        self._head_seconds = head_seconds
        self._since = 0.0  # time at which the phase began
        self._arrived = 0  # bytes since then
        self._phase: Any = None  # of the request, in h11's terms; None after the change to another protocol
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.max_size = READ_BYTES  # type: ignore[attr-defined] # an attribute of asyncio's own transports
        watched = WatchedTransport(transport, self._stall_seconds, self._breaks_off)
        super().connection_made(watched)  # type: ignore[arg-type]
        self.address = caller_of("", {"client": self.client})
        self._connections.add(self)
        self._watch()

    @property
    def idle(self) -> bool:
        """Whether it has no request, or none whose head is complete."""
        return self.conn.states == {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE}

    def data_received(self, data: bytes) -> None:
        self._arrived += len(data)
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_limit()
        self._connections.remove(self)
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
        self._phase, self._since, self._arrived = phase, self.loop.time(), 0
        if phase is h11.IDLE:
            self._limit = self.loop.call_later(self._head_seconds, self.transport.close)
        elif phase is h11.SEND_BODY:
            self._close_if_slow()
        elif phase is None:
            self._connections.remove(self)

    def _close_if_slow(self) -> None:
        """Close a connection whose body comes too slowly though nothing asks for it; `bodies` refuses the others."""
        left = self._since + seconds_for(self._arrived) + DRAIN_SECONDS - self.loop.time()
        if left > 0:
            self._limit = self.loop.call_later(left, self._close_if_slow)
        else:
            self.transport.close()

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
    """A WebSocket that limits what its client sends.

    It is closed if a message comes in too many frames or too slowly, is not UTF-8, or, on some paths, is too long for a
    piece of text; or if there is no room for what it holds. It is not read while its client sends too many frames.

    A connection that is closed because of what its client sent is read for a moment longer. If it were closed with
    unread bytes, the client might not get the reason.

    Args:
        texts_only: how the paths begin whose messages are limited to `TEXT_BYTES`.
        **of_uvicorn: the arguments of uvicorn's protocols.
    """

    latest = 0.0
    """Time of the latest whole message."""
    held: Item | None = None
    """The item of the account for what the connection and its session hold."""
    frames_of_caller: Bucket | None = None
    """Counts the frames of all WebSockets of the caller."""
    _fragments = 0
    _failed = False
    _framed = _counted = 0  # bytes and number of the frames of the unfinished message
    _handled = 0  # bytes of the message that the application has
    _charged = 0  # bytes
    _slow: asyncio.TimerHandle | None = None  # while a message is unfinished
    _since = 0.0  # when it began

    transport: WatchedTransport  # type: ignore[assignment]

    def __init__(self, texts_only: tuple[str, ...], **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._texts_only = texts_only
        self._frames = Bucket(FRAMES, 2 * FRAMES)
        self._unhandled: deque[int] = deque()  # bytes of each whole message

    def begin(self, account: Account, caller: str) -> Item:
        """Open and return the item of the account for what this connection holds."""
        self.held = account.open(caller, self.overload)
        if self.disconnected:
            self.held.close()
        return self.held

    def overload(self) -> None:
        self.fail(1013, "the gateway has no room for this connection now; try again later")

    def fail(self, code: int, reason: str) -> None:
        """End the connection with a code."""
        self.conn.fail(code, reason)
        self.handle_parser_exception()
        if not self._failed:  # it is not open yet
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._failed:
            super().data_received(data)
            self._framed += sum(len(frame) for frame in self.frames[self._counted :])
            self._counted = len(self.frames)
            self._charge()
            self._watch()
        if not self.handshake_initiated:  # uvicorn leaves a connection open whose first request it cannot read
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.frames = []
        self.conn.reader.buffer.clear()  # this object is in cycles, which Python may collect much later
        super().connection_lost(exc)
        self._charge()
        self._watch()
        if self.held is not None:
            self.held.close()

    async def receive(self) -> Any:
        """Return the next message; the call says that the one before it was handled."""
        self._handled = 0
        self._charge()
        message = await super().receive()
        if message["type"] == "websocket.receive":
            self._handled = self._unhandled.popleft()
        return message

    def handle_events(self) -> None:
        """Handle what was parsed; the frames that continue a message count at its end."""
        events = [each for each in self.conn.events if isinstance(each, Frame)]
        self._count_frames(sum(each.opcode is not Opcode.CONT for each in events))
        super().handle_events()

    def _count_frames(self, frames: int) -> None:
        """Stop reading for a while if these are too many."""
        wait = max(bucket.take(frames) for bucket in (self._frames, self.frames_of_caller) if bucket is not None)
        if wait > 0:
            self.transport.pause_reading("frames")
            self.loop.call_later(wait, self.transport.resume_reading, "frames")

    def _charge(self) -> None:
        """Charge the account with what is unfinished, and with the messages that are not handled yet."""
        size = self._unfinished() + sum(self._unhandled) + self._handled
        if self.held is None:
            return
        try:
            self.held.add(size - self._charged)
            self._charged = size
        except Full:
            self.overload()

    def _unfinished(self) -> int:
        return len(self.conn.reader.buffer) + self._framed

    def _watch(self) -> None:
        """Close the connection if a message is not whole in time."""
        if self._slow is None and self._unfinished():
            self._since = self.loop.time()
            self._close_if_slow()
        elif self._slow is not None and (self.disconnected or not self._unfinished()):
            self._slow.cancel()
            self._slow = None

    def _close_if_slow(self) -> None:
        now = self.loop.time()
        if self.read_paused:  # not by its client's fault
            self._since = now
        left = self._since + seconds_for(self._unfinished()) - now
        if left > 0:
            self._slow = self.loop.call_later(left, self._close_if_slow)
        else:
            self.fail(1008, "a message comes too slowly")

    def handle_parser_exception(self) -> None:
        """End the connection, with the reason."""
        if self._failed or self.conn.close_sent is None:
            return
        self._failed = self.close_sent = True
        self.frames, self._framed, self._counted = [], 0, 0
        self._watch()
        closing = self.conn.close_sent
        self.queue.put_nowait({"type": "websocket.disconnect", "code": closing.code, "reason": closing.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.loop.call_later(DRAIN_SECONDS, self.transport.close)

    def handle_connect(self, event: Request) -> None:
        """Set the limit of the messages, then connect."""
        if unquote(event.path).startswith(self._texts_only):
            self.conn.max_message_size = min(self.conn.max_message_size or TEXT_BYTES, TEXT_BYTES)
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["state"]["connection"] = self

    def handle_cont(self, event: Frame) -> None:
        """Add a frame to its message."""
        if event.fin:
            self._count_frames(self._fragments + 1)
        self._fragments = 0 if event.fin else self._fragments + 1
        if self._fragments < MAX_FRAGMENTS:
            super().handle_cont(event)
        elif self._fragments == MAX_FRAGMENTS:  # later ones arrived together with this one
            self.fail(1008, f"a message may have {MAX_FRAGMENTS} frames")

    def send_receive_event_to_app(self) -> None:
        """Hand a message on; end a connection whose text is not UTF-8, for which uvicorn would log a traceback."""
        self.frames = [b"".join(self.frames)]
        self.latest = self.loop.time()
        self._framed = self._counted = 0
        if self.curr_msg_data_type == "text":
            try:
                self.frames[0].decode()
            except UnicodeDecodeError:
                self.fail(1007, "a message in a text frame is not UTF-8")
                return
        if not self.close_sent:
            self._unhandled.append(len(self.frames[0]))
        super().send_receive_event_to_app()


class _OfCaller:
    """The WebSockets of one caller."""

    def __init__(self) -> None:
        self.open: set[FairWebSocket] = set()
        self.frames = Bucket(FRAMES_OF_CALLER, 2 * FRAMES_OF_CALLER)


class Sockets:
    """The WebSockets that are open, by caller."""

    def __init__(self) -> None:
        self._callers: dict[str, _OfCaller] = {}

    @contextmanager
    def place(self, websocket: WebSocket) -> Iterator[None]:
        """Hold a place during the `with` block. If all are taken, the most idle WebSocket of the caller that has most
        is closed.

        Raises:
            HTTPFailure: 429, the caller has as many as it may.
            Full: all places are taken, and no caller has more than this one.
        """
        connection: FairWebSocket = websocket.state.connection
        caller = websocket.state.held.caller
        own = self._callers.get(caller) or _OfCaller()
        if len(own.open) >= SOCKETS_OF_CALLER:
            message = f"{len(own.open)} WebSockets of this caller are open, the most that it may have; close one"
            raise limit_reached(message, "too_many_connections", 1)
        if sum(len(each.open) for each in self._callers.values()) >= SOCKETS:
            most = max(self._callers.values(), key=lambda each: len(each.open))
            if len(most.open) <= len(own.open):
                raise Full(1)
            idle = min(most.open, key=lambda each: each.latest)
            most.open.remove(idle)
            idle.overload()
        self._callers[caller] = own
        own.open.add(connection)
        connection.frames_of_caller = own.frames
        connection.latest = connection.loop.time()
        try:
            yield
        finally:
            own.open.discard(connection)
            if not own.open:
                self._callers.pop(caller, None)
