"""Close the connections of clients that do not read.

All answers and WebSocket messages of all routes pass through this module. When it closes a connection, the speech ends
and its memory is freed, as if the client had left.

Little is kept for a client that reads slowly: asyncio stops a sender with 64 KiB of waiting data, and the kernel keeps
at most `UNSENT_BYTES` that the client's side has no space for.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

try:
    import fcntl
    import termios
except ImportError:  # Windows
    pass

log = logging.getLogger(__name__)

UNSENT_BYTES = 64 << 10
"""Of one connection, in the kernel."""
_CHECKS = 8
"""In the time after which a connection is cut."""
_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: the end of a connection is a reset


class WatchedTransport:
    """A transport of asyncio that aborts the connection if its client reads nothing for too long.

    Time counts only while the client has something to read, and starts again with each byte that the client's side
    takes. So a slow client is never cut off.

    Args:
        transport: of the connection.
        seconds: time without a byte until the connection is aborted.
        breaks_off: whether a normal close now would make an incomplete answer look complete.
    """

    def __init__(self, transport: asyncio.Transport, seconds: float, breaks_off: Callable[[], bool]) -> None:
        self._transport = transport
        self._seconds = seconds
        self._breaks_off = breaks_off
        self._loop = asyncio.get_running_loop()
        self._written = 0  # bytes
        self._taken = 0  # of them, by the client's side at the latest check
        self._taken_at = 0.0  # time at which it had grown
        self._check_later: asyncio.TimerHandle | None = None
        self._pauses: set[str] = set()
        self._socket: Any = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            with suppress(OSError):  # no TCP
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def pause_reading(self, why: str = "") -> None:
        """Read nothing until each reason is over."""
        self._pauses.add(why)
        self._transport.pause_reading()

    def resume_reading(self, why: str = "") -> None:
        """Read again, unless there is another reason not to."""
        self._pauses.discard(why)
        if not self._pauses:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send data, and watch whether the client reads it."""
        self._written += len(data)
        self._transport.write(data)
        if self._check_later is None:
            self._taken_at = self._loop.time()
            self._check_later = self._loop.call_later(self._seconds / _CHECKS, self._check)

    def close(self) -> None:
        """Close the connection. Reset it if the client would otherwise take its end for the end of the answer."""
        if not self._breaks_off():
            self._transport.close()
            return
        with suppress(OSError):  # it is closed
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._transport.abort()

    def _check(self) -> None:
        self._check_later = None
        waiting = self._waiting()
        if not waiting:
            return
        now = self._loop.time()
        if self._written - waiting > self._taken:
            self._taken, self._taken_at = self._written - waiting, now
        if now - self._taken_at < self._seconds:
            self._check_later = self._loop.call_later(self._seconds / _CHECKS, self._check)
            return
        log.info("a client has read nothing for %g s; its connection is closed", self._seconds)
        self._transport.abort()

    def _waiting(self) -> int:
        """Return the bytes that the client's side has not taken; 0 if the connection is lost."""
        waiting = self._transport.get_write_buffer_size()
        # The socket is closed, or, on Windows, what the kernel has taken counts as read.
        with suppress(OSError, ValueError, NameError):
            waiting += int.from_bytes(fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        return waiting
