"""A TCP proxy that delays, swallows and cuts, between a program and a server of the loopback interface."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable


class Proxy:
    """Passes bytes on until it must not; a context manager.

    Attributes:
        port: where it listens.
        delay: seconds before each piece is passed on.
        swallow: whether pieces are dropped, so that neither side hears of the other.
        watch: called with each piece from the client before it is passed on; True cuts the connection after that, so
            that the server has the piece and the client gets no answer.
    """

    def __init__(self, to_port: int) -> None:
        self._to = to_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.delay = 0.0
        self.swallow = False
        self.refuse = False
        self.watch: Callable[[bytes], bool] = lambda piece: False
        self._lines: set[socket.socket] = set()
        self._deaf: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cut all connections."""
        for line in tuple(self._lines):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuse:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                client.close()
                continue
            self._lines |= {client, server}
            for one, other, watched in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pass_on, args=(one, other, watched), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, watched: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := one.recv(1 << 16):
                time.sleep(self.delay)
                if self.swallow:
                    continue
                if not watched and other in self._deaf:
                    continue
                last = watched and self.watch(piece)
                if last:
                    self._deaf.add(one)  # whose answer may come before the connection is cut
                other.sendall(piece)
                if last:
                    time.sleep(0.02)  # the server reads it
                    one.shutdown(socket.SHUT_RDWR)
                    break
        for line in (one, other):
            self._lines.discard(line)
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            if line is one:
                line.close()
