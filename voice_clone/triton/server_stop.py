"""A server that gets a SIGTERM waits for its streams.

On SIGTERM a tritonserver first lets its HTTP connections end: it refuses new ones and waits until the open ones have
closed, but no longer than its exit timeout. Then it stops the models. From that moment it refuses every request, also
those that the steps of a running ensemble still make: its streams break off, and Triton 2.51 neither ends nor releases
them (fault: stop-in-ensemble): clients wait for ever, and the server crashes at its exit timeout. So this module holds
one connection open until the streams have ended. It notices the stop by a second connection, tried again and again,
that is refused.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HOLD_SECONDS = 0.02  # between two tries for the first connection; until there is one, a stop breaks streams off
POLL_SECONDS = 0.25
TRIES = 3  # refused connections in a row that count as a stop
RESERVE = 8.0  # seconds of the exit timeout that the server needs to unload the models
REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HttpEndpoint:
    """Where a tritonserver listens for HTTP, and the seconds that it gives to running requests when it stops."""

    host: str
    port: int
    exit_timeout: float

    @classmethod
    def of_parent(cls) -> HttpEndpoint | None:
        """That of the server that runs this model; None if there is none."""
        try:
            words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return None
        return cls.of_command(words)

    @classmethod
    def of_command(cls, words: Sequence[str]) -> HttpEndpoint | None:
        """That of a server started with this command line."""
        options: dict[str, str] = {}
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, equals, value = word.partition("=")
            options[name] = value if equals else following
        if options.get("--allow-http", "true").lower() in ("false", "0"):
            return None
        host = options.get("--http-address", "127.0.0.1").removeprefix("ipv6:")  # libevent's word for such an address
        port, exit_timeout = options.get("--http-port", "8000"), options.get("--exit-timeout-secs", "30")
        if not (port.isdigit() and exit_timeout.isdigit()):
            return None
        return cls({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), int(port), float(exit_timeout))


class ServerStop:
    """Calls back when the server gets a SIGTERM, and delays the stop meanwhile.

    Args:
        endpoint: the server's.
        drain: called once with the seconds that are left, from a thread of this object; when it returns the server
            stops its models.
    """

    def __init__(self, endpoint: HttpEndpoint, drain: Callable[[float], None]) -> None:
        self._endpoint = endpoint
        self._drain = drain
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server stop", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching; call it when the model is unloaded."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        held = self._hold()
        if held is None:
            return
        with held:
            refused = 0
            while refused < TRIES:
                if self._closing.wait(POLL_SECONDS if not refused else POLL_SECONDS / 10):
                    return
                refused = refused + 1 if self._refuses() else 0
            log.info("the server is stopping; it waits for the running streams")
            timeout = self._endpoint.exit_timeout
            self._drain(max(timeout - RESERVE, timeout / 2))

    def _hold(self) -> socket.socket | None:
        """A connection, as soon as the server listens, which it does after its models are loaded."""
        while not self._closing.wait(HOLD_SECONDS):
            if self._refuses() is False:
                with contextlib.suppress(OSError):  # the next try follows
                    return self._connect()
        return None

    def _connect(self) -> socket.socket:
        return socket.create_connection((self._endpoint.host, self._endpoint.port), timeout=5.0)

    def _refuses(self) -> bool | None:
        """Whether a new connection is refused; None if this try does not show it.

        The server may be too busy to answer, or this machine may have no port or no file descriptor left.
        """
        try:
            with self._connect() as connection:
                connection.sendall(REQUEST)
                return not connection.recv(1)
        except ConnectionError:
            return True
        except OSError:
            return None
