"""What one caller sends holds nobody else up: its size, its parts, its memory, its names."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import websockets.sync.client
from voice_clone_client import Overloaded
from voice_clone_gateway.http.bodies import Budget
from voice_clone_gateway.http.protocol import MAX_FRAGMENTS
from voice_clone_gateway.reference_fetch import Resolver
from websockets.exceptions import ConnectionClosed

from tests.support.gateway_thread import Serve
from tests.support.triton_double import Server
from tests.support.waiting import until

JSON = {"Content-Type": "application/json"}
SPEECH = "/v1/audio/speech"
MANY = b'{"input": "x", "voice": "ada"' + b"".join(b', "f%d": 1' % index for index in range(200_000)) + b"}"
NAME = b'{"input": "x", "' + b"n" * 10_000_000 + b'": 1}'
BATCH = json.dumps({"items": [{f"f{field}": 1 for field in range(5000)} for _ in range(32)]}).encode()
DEEP = b'{"options": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"


@pytest.mark.parametrize(
    ("path", "body"),
    [(SPEECH, MANY), (SPEECH, NAME), (f"{SPEECH}/batch", BATCH), (SPEECH, DEEP), (SPEECH, b"[" * 10**6)],
    ids=["fields", "name", "batch", "deep", "open"],
)
def test_a_body_of_many_parts_is_refused_before_it_is_parsed(
    triton: Server, serve: Serve, path: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text, **more: parsed.append(len(text)) or loads(text, **more))
    answer = serve(triton.url).post(path, content=body, headers=JSON)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "too_complex"
    assert len(answer.content) < 500, "nothing of the body is echoed"
    assert max(parsed, default=0) < 100_000 and triton.calls == []


@pytest.mark.parametrize("body", [MANY, NAME], ids=["fields", "name"])
def test_a_message_of_many_parts_is_refused_before_it_is_parsed(triton: Server, serve: Serve, body: bytes) -> None:
    url = str(serve(triton.url).base_url).replace("http", "ws")
    with websockets.sync.client.connect(f"{url}{SPEECH}/stream", proxy=None, max_size=None) as connection:
        connection.send(b'{"type": "session.config", ' + body[1:], text=True)
        error = json.loads(connection.recv(10))["error"]
        assert error["code"] == "too_complex" and len(error["message"]) < 200


def test_a_message_in_many_frames_ends_the_connection(triton: Server, serve: Serve) -> None:
    url = str(serve(triton.url).base_url).replace("http", "ws")
    for frames, accepted in ((MAX_FRAGMENTS - 9, True), (MAX_FRAGMENTS + 9, False), (5 * MAX_FRAGMENTS, False)):
        text = '{"type": "session.config", "voice": "ada"}'.ljust(frames)
        with websockets.sync.client.connect(f"{url}{SPEECH}/stream", proxy=None) as connection:
            try:
                connection.send(iter(text))
                connection.send('{"type": "unknown"}')
                answer = connection.recv(10)
                assert accepted and "a message is" in answer
            except ConnectionClosed as closed:
                # While frames are on their way the system resets the connection: its last message may be lost.
                assert not accepted and (closed.rcvd is None or closed.rcvd.code == 1008)


@contextlib.contextmanager
def held(http: httpx2.Client, size: int) -> Iterator[socket.socket]:
    """A connection that has sent all of its body but the last byte."""
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=30) as connection:
        head = f"POST {SPEECH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
        connection.sendall(head.encode() + b'{"voice": "ada", "input": "' + b"x" * (size - 30))
        yield connection


def answered(connection: socket.socket) -> bytes:
    connection.settimeout(0.2)
    with contextlib.suppress(TimeoutError):
        return connection.recv(4096)
    return b""


def test_bodies_share_a_budget(triton: Server, serve: Serve) -> None:
    http = serve(triton.url, max_held_bytes=1_000_000, retry_after=3)
    with contextlib.ExitStack() as stack:
        open_ = [stack.enter_context(held(http, 400_000)) for _ in range(2)]
        refused = stack.enter_context(held(http, 400_000))
        refused.settimeout(10)
        answer = refused.recv(4096).lower()
        assert answer.startswith(b"http/1.1 503") and b"retry-after: 3" in answer
        assert [answered(connection) for connection in open_] == [b"", b""], "these still wait for their last bytes"
        small = http.post(SPEECH, json={"input": "Hello.", "voice": "ada"})
        assert small.status_code == 200, "a small body needs no room"

    def again() -> bool:
        body = {"input": "Hello.", "voice": "ada", "instructions": " " * 4000, "language": None}
        return http.post(SPEECH, content=json.dumps(body).ljust(900_000), headers=JSON).status_code == 200

    until(again)  # what was held is free when its connections are gone


def test_one_body_alone_may_be_larger_than_the_budget(triton: Server, serve: Serve) -> None:
    body = json.dumps({"input": "Hello.", "voice": "ada"}).ljust(300_000)
    http = serve(triton.url, max_held_bytes=100_000)
    assert [http.post(SPEECH, content=body, headers=JSON).status_code for _ in range(3)] == [200] * 3


def test_the_budget() -> None:
    budget = Budget(10)
    assert budget.take(8, 0) and not budget.take(3, 0) and budget.take(2, 0) and budget.held == 10
    budget.give(10)
    assert budget.take(50, 0) and budget.take(50, 50) and not budget.take(1, 0)
    budget.give(100)
    assert budget.held == 0


def test_silent_name_servers_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = threading.Event()
    looked_up: list[str] = []

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        looked_up.append(host)
        silent.wait()
        return [(0, 0, 0, "", ("192.0.2.1", 443))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    async def test() -> None:
        resolver = Resolver(threads=3)
        waiting = [asyncio.create_task(resolver(f"name{index}", 443)) for index in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await resolver("fourth", 443)
        assert await asyncio.to_thread(lambda: "free") == "free", "other work has threads of its own"
        waiting[0].cancel()
        with pytest.raises(Overloaded):
            await resolver("fifth", 443)  # who gives up frees no thread
        silent.set()
        assert await asyncio.gather(*waiting[1:]) == [["192.0.2.1"]] * 2
        while resolver._free < 3:
            await asyncio.sleep(0.01)
        assert await resolver("sixth", 443) == ["192.0.2.1"]

    asyncio.run(test())
    assert looked_up == ["name0", "name1", "name2", "sixth"]
