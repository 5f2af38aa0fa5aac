"""Short messages between the models of one server: a listener's stream has been begun.

A message is a datagram to a socket in Linux's abstract namespace, which is named after the server's process. So nothing
stays on the disk, a model that has ended gets nothing, and a sender never waits. Another process of the machine may
send one, too; see `Expected`.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from voice_clone.batching.expected import NAME_SIZE, name_of

_MOST = 64  # messages that are read at once


class Notices:
    """The messages that a model gets.

    Args:
        model: its name.
    """

    def __init__(self, model: str) -> None:
        self._socket = _socket()
        self._address = _address(model)
        self._bound = False
        self.news()

    def news(self) -> Sequence[str]:
        """Return the names of the streams in the messages that came since the last call."""
        found: list[str] = []
        with contextlib.suppress(OSError):  # there are no more; or a process that this one replaces still gets them
            if not self._bound:
                self._socket.bind(self._address)
                self._bound = True
            while len(found) < _MOST:
                found.append(self._socket.recv(NAME_SIZE).decode(errors="replace"))
        return found

    def close(self) -> None:
        self._socket.close()


class NoticesSender:
    """Sends messages; thread-safe.

    Args:
        models: the names of those that get them.
    """

    def __init__(self, *models: str) -> None:
        self._socket = _socket()
        self._addresses = [_address(model) for model in models]

    def send(self, stream_id: str) -> None:
        """Send a message to all. One that does not read them misses it."""
        for address in self._addresses:
            with contextlib.suppress(OSError):
                self._socket.sendto(name_of(stream_id).encode(), address)

    def close(self) -> None:
        self._socket.close()


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _address(model: str) -> bytes:
    """Of a model of this process's server. Two containers may have servers of the same number, but of other starts."""
    server = os.getppid()
    with contextlib.suppress(OSError, IndexError):
        started = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[19]
        return f"\0voice_clone.{server}.{started}.{model}".encode()
    return f"\0voice_clone.{server}.{model}".encode()
