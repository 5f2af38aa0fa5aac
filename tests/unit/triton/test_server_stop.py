"""A server that stops: it is noticed at once, and held until the streams have ended."""

from __future__ import annotations

import errno
import queue
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.waiting import WAIT, until
from voice_clone.triton.server_stop import RESERVE, HttpEndpoint, ServerStop
from voice_clone_server.triton_server import free_ports


class Door:
    """Takes connections as Triton's HTTP endpoint does: each request is answered; once it is shut, it takes no more."""

    def __init__(self, port: int) -> None:
        self.open = True
        self.asked = 0
        self.held: set[socket.socket] = set()  # connections that are still open
        self._listener = socket.create_server(("127.0.0.1", port))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._take()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._answer(key.fileobj)

    def _take(self) -> None:
        connection, _ = self._listener.accept()
        if self.open:
            self.held.add(connection)
            self._selector.register(connection, selectors.EVENT_READ)
        else:
            connection.close()

    def _answer(self, connection: socket.socket) -> None:
        try:
            if connection.recv(1000):
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                self.asked += 1
                return
        except ConnectionError:
            pass
        self._selector.unregister(connection)
        connection.close()
        self.held.discard(connection)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for each in (self._listener, *self.held):
            each.close()
        self._selector.close()


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def door(port: int) -> Iterator[Door]:
    door = Door(port)
    yield door
    door.close()


def test_a_server_that_stops_is_held_until_all_is_done(door: Door, port: int) -> None:
    drained: queue.Queue[float] = queue.Queue()
    finish = threading.Event()

    def drain(seconds: float) -> None:
        drained.put(seconds)
        assert finish.wait(WAIT)

    stop = ServerStop(HttpEndpoint("127.0.0.1", port, 30.0), drain)
    until(lambda: door.asked > 2)
    assert drained.empty()
    door.open = False
    assert drained.get(timeout=WAIT) == 30.0 - RESERVE
    until(lambda: len(door.held) == 1)
    finish.set()
    until(lambda: not door.held)
    stop.close()
    assert drained.empty(), "called once"


def test_a_model_that_is_unloaded_looks_no_longer(door: Door, port: int) -> None:
    stop = ServerStop(HttpEndpoint("127.0.0.1", port, 30.0), lambda _: pytest.fail("it does not stop"))
    until(lambda: door.asked > 0)
    stop.close()
    until(lambda: not door.held)


def test_a_server_that_does_not_listen_yet_is_not_stopping(port: int) -> None:
    drained = threading.Event()
    stop = ServerStop(HttpEndpoint("127.0.0.1", port, 3.0), lambda _: drained.set())
    time.sleep(0.6)
    door = Door(port)
    until(lambda: door.asked > 1)
    assert not drained.is_set()
    stop.close()
    door.close()


@pytest.mark.parametrize("number", [errno.EADDRNOTAVAIL, errno.EMFILE])
def test_a_machine_without_ports_or_files_is_no_server_that_stops(
    door: Door, port: int, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    drained = threading.Event()
    connect = socket.create_connection
    failing = False
    failed = 0

    def fail_now(*args: Any, **kwargs: Any) -> socket.socket:
        nonlocal failed
        if failing or failed == 0:
            failed += 1
            raise OSError(number, "no room")
        return connect(*args, **kwargs)

    monkeypatch.setattr(socket, "create_connection", fail_now)
    stop = ServerStop(HttpEndpoint("127.0.0.1", port, 3.0), lambda _: drained.set())
    until(lambda: door.asked > 2)
    failing, before = True, failed
    until(lambda: failed > before + 4)
    failing = False
    assert not drained.is_set()
    door.open = False
    assert drained.wait(WAIT)
    stop.close()


def test_a_server_that_never_listens(port: int) -> None:
    ServerStop(HttpEndpoint("127.0.0.1", port, 3.0), lambda _: pytest.fail("it does not stop")).close()


COMMANDS: dict[str, tuple[str, HttpEndpoint | None]] = {
    "nothing said": ("tritonserver", HttpEndpoint("127.0.0.1", 8000, 30.0)),
    "all said": (
        "tritonserver --http-port=81 --http-address=10.0.0.1 --exit-timeout-secs=5",
        HttpEndpoint("10.0.0.1", 81, 5.0),
    ),
    "in two words": ("tritonserver --http-port 82 --allow-http true", HttpEndpoint("127.0.0.1", 82, 30.0)),
    "all addresses": ("tritonserver --http-address=0.0.0.0", HttpEndpoint("127.0.0.1", 8000, 30.0)),
    "IPv6, as libevent has it": ("tritonserver --http-address=ipv6:::1", HttpEndpoint("::1", 8000, 30.0)),
    "all addresses of IPv6": ("tritonserver --http-address ::", HttpEndpoint("::1", 8000, 30.0)),
    "no HTTP": ("tritonserver --allow-http=False", None),
    "no number": ("tritonserver --http-port=http", None),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_where_the_server_listens(case: str) -> None:
    command, expected = COMMANDS[case]
    assert HttpEndpoint.of_command(command.split()) == expected


def test_the_process_that_started_this_one_has_a_command_line() -> None:
    assert HttpEndpoint.of_parent() == HttpEndpoint("127.0.0.1", 8000, 30.0)
