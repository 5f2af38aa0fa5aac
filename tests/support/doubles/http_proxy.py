"""An HTTP proxy of the loopback interface: the method CONNECT, and plain requests to absolute URLs."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class HttpProxy:
    """A running one.

    Attributes:
        url: of it.
        asked: the first lines of the requests.
        refuse: answer all with 403.
    """

    def __init__(self, listener: socket.socket) -> None:
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.asked: list[str] = []
        self.refuse = False
        self._listener = listener

    def serve(self) -> None:
        """Serve until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

    def _serve_one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (piece := connection.recv(4096)):
                    return
                head += piece
            line = head.split(b"\r\n")[0].decode()
            self.asked.append(line)
            method, target, _ = line.split(" ")
            if self.refuse:
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
                return
            host, _, port = target.removeprefix("http://").partition("/")[0].rpartition(":")
            with socket.create_connection((host.strip("[]"), int(port))) as there:
                if method == "CONNECT":
                    connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                else:
                    there.sendall(head)
                back = threading.Thread(target=_copy, args=(there, connection), daemon=True)
                back.start()
                _copy(connection, there)
                back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def running() -> Iterator[HttpProxy]:
    """A proxy for the `with` block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = HttpProxy(listener)
        threading.Thread(target=proxy.serve, daemon=True).start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
