"""The account of bytes: its rule against a model, and what callers see of it at the gateway."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from voice_clone_client.callers import on_behalf_of
from voice_clone_gateway import listening
from voice_clone_gateway.confined import ConfinedProcesses
from voice_clone_gateway.http import account as accounts
from voice_clone_gateway.http import limits, uvicorn_protocols
from voice_clone_gateway.http.account import Account, Full, Item
from voice_clone_gateway.places import Places, TooManyWait

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import Server, chunk, endless
from tests.support.waiting import until

SPEECH = "/v1/audio/speech"
MALLORY, ALICE = "mallorys-key", "alices-key"
BODY = {"input": "Hello.", "voice": "ada", "response_format": "wav", "stream": False}
MB = 1_000_000

ACT = st.tuples(
    st.sampled_from(("open", "add", "add", "add", "freeze", "close", "move")), st.integers(0, 3), st.integers(0, 60)
)


@given(st.lists(ACT, max_size=60))
def test_the_rule(acts: list[tuple[str, int, int]]) -> None:
    """A model beside it: a list of [caller, size, frozen], the oldest first."""
    account = Account(100)
    items: list[Item] = []
    model: dict[int, list[Any]] = {}

    def held(caller: str | None = None) -> int:
        return sum(size for of, size, _ in model.values() if caller in (None, of))

    def frozen() -> int:
        return sum(size for _, size, is_frozen in model.values() if is_frozen)

    for act, which, count in acts:
        if act == "open":
            items.append(account.open("abcd"[which], partial(model.pop, len(items))))
            model[len(items) - 1] = ["abcd"[which], 0, False]
        elif items:
            at = count % len(items)
            item, entry = items[at], model.get(at)
            if act == "close":
                item.close()
                model.pop(at, None)
            elif act == "freeze":
                may = entry is not None and (entry[2] or frozen() + entry[1] <= 50)
                assert item.freeze() == may or entry is None
                if may:
                    assert entry is not None
                    entry[2] = True
            elif act == "move" and entry is not None:
                item.move("abcd"[which])
                entry[0] = "abcd"[which]
            elif act == "add":
                before, own = held(), held(item.caller)
                others = [e for e in model.values() if e[0] != item.caller and e[1] and not e[2]]
                try:
                    item.add(count)
                except Full:
                    assert entry is None or before + count > 100 or (entry[2] and frozen() + count > 50)
                    if entry is not None and not entry[2] and not own and count <= 50:
                        assert not [e for e in model.values() if e[0] != item.caller and e[1] and not e[2]], (
                            "one that holds nothing is refused only if the rest is frozen"
                        )
                else:
                    if entry is not None:
                        entry[1] += count
                    if before + count <= 100:
                        assert all(e in model.values() for e in others), "nobody gives while there is room"
        assert account.held() == held() <= 100 and frozen() <= 50
        assert all(account.held(caller) == held(caller) for caller in "abcd")


def test_the_newest_of_the_caller_that_holds_most_gives() -> None:
    account, given_ = Account(100), []
    items = {name: account.open(name[0], partial(given_.append, name)) for name in ("a1", "b1", "a2", "a3")}
    for name, size in (("a1", 30), ("a2", 20), ("b1", 30), ("a3", 20)):
        items[name].add(size)
    items["a3"].freeze()
    with pytest.raises(Full):
        items["a1"].add(1)  # it holds most itself
    items["b1"].add(10)
    assert given_ == ["a2"] and account.held("a") == 50 and account.held("b") == 40
    with pytest.raises(Full):
        items["a2"].add(1)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(f"{MALLORY} speak,manage name=mallory\n{ALICE} speak,manage name=alice\n")
    return str(path)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def opened(http: httpx2.Client, stack: contextlib.ExitStack, text: str) -> socket.socket:
    connection = stack.enter_context(
        socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=30)
    )
    connection.sendall(text.replace("\n", "\r\n").encode())
    return connection


def body_of(size: int, path: str = SPEECH, kind: str = "application/json", length: bool = True) -> str:
    how = f"Content-Length: {size}" if length else "Transfer-Encoding: chunked"
    return f"POST {path} HTTP/1.1\nHost: x\nAuthorization: Bearer {MALLORY}\nContent-Type: {kind}\n{how}\n\n"


def first_line(connection: socket.socket, seconds: float = 30) -> str:
    connection.settimeout(seconds)
    with contextlib.suppress(OSError):
        return connection.recv(4096).decode("latin-1").partition("\r")[0]
    return ""


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("path", "kind"),
    [(SPEECH, "application/json"), ("/v1/audio/voices", "multipart/form-data; boundary=b"),
     (SPEECH, "application/x-www-form-urlencoded"), ("/v1/audio/bundle", "application/octet-stream")],
)  # fmt: skip
def test_announced_bytes_cost_nothing_and_held_ones_are_given(
    triton: Server, serve: Serve, keys: str, path: str, kind: str, chunked: bool
) -> None:
    http = serve(triton.url, memory_bytes=4 * MB, max_bundle_bytes=4 * MB, api_keys_file=keys, retry_after=3)
    speech = {**BODY, "instructions": " " * 4000}
    large = json.dumps(speech).ljust(int(1.5 * MB)).encode()
    sent = f'--b\nContent-Disposition: form-data; name="audio_sample"; filename="a"\n\n{"x" * MB}'
    with contextlib.ExitStack() as stack:
        for _ in range(17):
            opened(http, stack, body_of(3 * MB, path, kind))
        answer = http.post(SPEECH, content=large, headers={**bearer(ALICE), "Content-Type": "application/json"})
        assert answer.status_code == 200
        piece = sent if not chunked else f"{len(sent) + sent.count(chr(10)):x}\n{sent}\n"
        held = [opened(http, stack, body_of(3 * MB, path, kind, not chunked) + piece) for _ in range(8)]
        time.sleep(0.3)  # until all has arrived
        answer = http.post(SPEECH, content=large, headers={**bearer(ALICE), "Content-Type": "application/json"})
        assert answer.status_code == 200, "what another one holds refuses nobody"
        lines = [first_line(each, 0.3) for each in held]
        assert {"HTTP/1.1 503 Service Unavailable", ""} == {*lines}, "its caller's excess gives, not all of it"


@contextlib.contextmanager
def websocket(http: httpx2.Client, key: str = MALLORY) -> Iterator[socket.socket]:
    with contextlib.ExitStack() as stack:
        nonce = base64.b64encode(os.urandom(16)).decode()
        connection = opened(
            http,
            stack,
            f"GET {SPEECH}/stream HTTP/1.1\nHost: x\nAuthorization: Bearer {key}\nConnection: Upgrade\n"
            f"Upgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: {nonce}\n\n",
        )
        assert " 101 " in first_line(connection)
        yield connection


def code_of(connection: socket.socket) -> int | None:
    """The code with which a WebSocket is closed, if that was the next frame."""
    connection.settimeout(5)
    with contextlib.suppress(OSError):
        frame = connection.recv(4096)
        return int.from_bytes(frame[2:4], "big") if frame[:1] == b"\x88" else None
    return None


def frame_of(size: int) -> bytes:
    return b"\x81\xff" + size.to_bytes(8, "big") + bytes(4)


def test_unfinished_frames_are_held(triton: Server, serve: Serve, keys: str) -> None:
    http = serve(triton.url, memory_bytes=4 * MB, api_keys_file=keys)
    with contextlib.ExitStack() as stack:
        ones = [stack.enter_context(websocket(http)) for _ in range(8)]
        for one in ones:
            one.sendall(frame_of(2 * MB) + b"x" * MB)
        assert 1013 in [code_of(one) for one in ones]
        assert http.post(SPEECH, json=BODY, headers=bearer(ALICE)).status_code == 200


def test_a_slow_body_and_a_slow_message(
    triton: Server, serve: Serve, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GRACE_SECONDS", 0.3)
    http = serve(triton.url, api_keys_file=keys)
    with contextlib.ExitStack() as stack:
        body = opened(http, stack, body_of(3 * MB) + "x")
        message = stack.enter_context(websocket(http))
        message.sendall(frame_of(2 * MB) + b"x")
        pings = stack.enter_context(websocket(http))
        pings.sendall(b"\x89\x80" + bytes(4))
        assert " 408 " in first_line(body) and code_of(message) == 1008
        pings.settimeout(0.5)
        assert pings.recv(100)[:1] == b"\x8a", "a client that only sends pings is not slow"
        with pytest.raises(TimeoutError):
            pings.recv(100)


def test_a_sender_of_many_frames_is_read_slowly(triton: Server, serve: Serve, keys: str) -> None:
    http = serve(triton.url, api_keys_file=keys)
    with websocket(http) as connection:
        connection.sendall(b"\x89\x80\0\0\0\0" * 8 * int(uvicorn_protocols.FRAMES))
        connection.settimeout(0.3)
        pongs = 0
        with contextlib.suppress(TimeoutError):
            while True:
                pongs += len(connection.recv(4096)) // 2
        assert 0 < pongs < 8 * uvicorn_protocols.FRAMES
        connection.settimeout(10)
        assert connection.recv(4096), "it goes on"


def test_sockets_of_a_caller(triton: Server, serve: Serve, keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_protocols, "SOCKETS_OF_CALLER", 3)
    monkeypatch.setattr(uvicorn_protocols, "SOCKETS", 4)
    http = serve(triton.url, api_keys_file=keys)
    with contextlib.ExitStack() as stack:
        idle, active, other = (stack.enter_context(websocket(http)) for _ in range(3))
        active.sendall(b"\x81\x82\0\0\0\0{}")
        with pytest.raises(AssertionError):
            stack.enter_context(websocket(http))
        first_line(active)
        for _ in range(2):
            stack.enter_context(websocket(http, ALICE))
        assert code_of(idle) == 1013, "the most idle one gives"
        del other


def test_connections_without_a_request_keep_nobody_out(
    triton: Server, serve: Serve, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "FILES", 16)
    triton.play = endless(0.01)
    http, text = serve(triton.url, api_keys_file=keys), json.dumps({**BODY, "stream": True})
    with contextlib.ExitStack() as stack:
        heard = opened(http, stack, body_of(len(text)) + text)
        assert " 200 " in first_line(heard)
        idle = [opened(http, stack, text) for text in ("", "GET /health HTTP/1.1\n") * 8]
        assert http.get("/metrics").status_code == 200
        for each in idle[:8]:
            each.settimeout(5)
            with contextlib.suppress(ConnectionError):
                assert each.recv(1) == b"", "the oldest ones are closed"
        for _ in range(20):
            assert heard.recv(4096), "one with a request goes on"


def long_speech(context: Any) -> Iterator[Any]:
    yield chunk(0, count=240_000, info={"cache": "hit"})
    yield chunk(1, count=240_000, final=True, info={"cache": "hit", "frames": 3})


def test_whole_answers(triton: Server, serve: Serve, keys: str) -> None:
    triton.play = long_speech
    http = serve(triton.url, memory_bytes=8 * MB, max_answer_bytes=MB, api_keys_file=keys)
    assert http.post(SPEECH, json=BODY, headers=bearer(ALICE)).status_code == 200
    http = serve(triton.url, memory_bytes=8 * MB, max_answer_bytes=MB // 2, api_keys_file=keys)
    batch = {"voice": "ada", "response_format": "wav", "items": [{"input": "Hello."}] * 2}
    refused = http.post(SPEECH, json=BODY, headers=bearer(ALICE))
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "answer_too_large"
    results = http.post(f"{SPEECH}/batch", json=batch, headers=bearer(ALICE)).json()["results"]
    assert [each["error"]["code"] for each in results] == ["answer_too_large"] * 2
    assert http.post(SPEECH, json={**BODY, "stream": True}, headers=bearer(ALICE)).status_code == 200


def test_an_endless_whole_answer_gives(triton: Server, serve: Serve, keys: str) -> None:
    triton.play = endless(0.01, count=24_000)
    http = serve(triton.url, memory_bytes=4 * MB, api_keys_file=keys, max_requests=9)
    answers: list[httpx2.Response] = []

    def hog() -> None:
        answers.append(http.post(SPEECH, json=BODY, headers=bearer(MALLORY)))

    hogs = [threading.Thread(target=hog) for _ in range(3)]
    for each in hogs:
        each.start()
    triton_calls = len(triton.speeches)
    until(lambda: len(triton.speeches) >= triton_calls)
    for each in hogs:
        each.join()
    assert {answer.json()["error"]["code"] for answer in answers} == {"overloaded"}
    assert all("retry-after" in answer.headers for answer in answers)


def test_one_export_of_a_caller_at_a_time(triton: Server, serve: Serve, keys: str) -> None:
    go_on = threading.Event()

    def slow(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] == b"export":
            go_on.wait(20)
        return {"result": b"{}", "artifacts": b"x" * 3 * MB}

    triton.answer = slow
    http = serve(triton.url, memory_bytes=8 * MB, api_keys_file=keys)
    path, answers = "/v1/audio/bundle", list[httpx2.Response]()
    first = threading.Thread(target=lambda: answers.append(http.get(path, headers=bearer(MALLORY))))
    first.start()
    until(lambda: any(inputs.get("operation") == b"export" for _, inputs in triton.calls))
    refused = http.get(path, headers=bearer(MALLORY))
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "too_many_exports"
    go_on.set()
    first.join()
    assert answers[0].content == b"x" * 3 * MB
    assert [http.get(path, headers=bearer(key)).status_code for key in (MALLORY, ALICE)] == [200, 200]


def test_a_websocket_that_is_gone_holds_nothing(triton: Server, serve: Serve) -> None:
    """Python may collect it much later."""

    def buffered() -> int:
        return sum(
            len(each.conn.reader.buffer) for each in gc.get_objects() if type(each) is uvicorn_protocols.FairWebSocket
        )

    http = serve(triton.url)
    gc.disable()
    try:
        with websocket(http) as one:
            one.sendall(frame_of(2 * MB) + b" " * MB)
            until(lambda: buffered() >= MB)
        until(lambda: not buffered())
    finally:
        gc.enable()


def test_a_large_configuration_of_a_session_is_held(triton: Server, serve: Serve, keys: str) -> None:
    http = serve(triton.url, memory_bytes=6 * MB, api_keys_file=keys)
    configuration = {"type": "session.config", "reference_audio": "data:audio/wav;base64," + "A" * 2 * MB}
    message = json.dumps(configuration).encode()
    with contextlib.ExitStack() as stack:
        ones = [stack.enter_context(websocket(http)) for _ in range(4)]
        for one in ones:
            one.sendall(frame_of(len(message)) + message)
        time.sleep(0.5)  # until they are configured
        one = stack.enter_context(websocket(http, ALICE))
        one.sendall(frame_of(len(message)) + message)
        assert 1013 in [code_of(each) for each in ones]
        assert code_of(one) is None, "another caller has room"


def test_answers_that_nobody_reads_are_held(triton: Server, serve: Serve, keys: str) -> None:
    voice = {"name": "ada", "generation": 1, "consent": "x" * MB}
    triton.answer = lambda _: {"result": json.dumps({"speakers": [voice] * 10}).encode(), "artifacts": b""}
    http = serve(triton.url, memory_bytes=35 * MB, api_keys_file=keys)
    ask = f"GET /v1/audio/voices HTTP/1.1\nHost: x\nAuthorization: Bearer {MALLORY}\n\n"
    with contextlib.ExitStack() as stack:
        lines = [first_line(opened(http, stack, ask)) for _ in range(5)]
        assert lines == ["HTTP/1.1 200 OK"] * 3 + ["HTTP/1.1 503 Service Unavailable"] * 2
        assert http.get("/v1/audio/voices", headers=bearer(ALICE)).status_code == 200


def test_places_go_to_callers_in_turn() -> None:
    async def run() -> list[str]:
        places, served = Places(1, 2, 30.0, "files"), list[str]()

        async def work(caller: str) -> None:
            with on_behalf_of(caller):
                async with places.place():
                    served.append(caller)
                    await asyncio.sleep(0)

        many = [asyncio.create_task(work("a")) for _ in range(4)]
        await asyncio.sleep(0)
        await asyncio.gather(work("b"), *many, return_exceptions=True)
        assert [type(task.exception()) for task in many] == [type(None)] * 3 + [TooManyWait]
        return served

    assert asyncio.run(run()) == ["a", "a", "b", "a"], "not behind all that came before it"


def test_a_caller_without_a_place_gets_one_of_the_others() -> None:
    async def run() -> None:
        places = Places(2, 4, 0.1, "files", more=1)
        busy = [await places.enter("a") for _ in range(2)]
        for caller in ("a", "b", "c"):
            if caller == "b":
                busy.append(await places.enter(caller))
                continue
            with pytest.raises(TooManyWait):
                await places.enter(caller)
        for leave in busy:
            leave()

    asyncio.run(run())


@pytest.mark.parametrize("path", ["voices", "detect"])
def test_files_of_callers_that_left_are_not_decoded(
    triton: Server, serve: Serve, keys: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def run(*_: Any) -> tuple[int, bytes]:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        raise AssertionError

    monkeypatch.setattr(ConfinedProcesses, "run", run)
    http = serve(triton.url, api_keys_file=keys)
    part = '--b\nContent-Disposition: form-data; name="{}"{}\n\n{}\n'
    file = part.format("audio_sample" if path == "voices" else "file", '; filename="a"', "#!AMR\n")
    text = file + part.format("name", "", "a") + part.format("consent", "", "yes") if path == "voices" else file
    size = len(f"{text}--b--".replace("\n", "\r\n"))
    with contextlib.ExitStack() as stack:
        opened(http, stack, body_of(size, f"/v1/audio/{path}", "multipart/form-data; boundary=b") + text + "--b--")
        assert begun.wait(10)
    assert ended.wait(10)


def test_memory_is_given_back_after_much_was_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    monkeypatch.setattr(accounts.ctypes, "CDLL", lambda _: SimpleNamespace(malloc_trim=trimmed.append))
    account = Account(1 << 30)
    item = account.open("ada", lambda: None)

    async def run() -> None:
        task = asyncio.create_task(accounts.give_back(account, 0.01))
        item.add(accounts.MUCH // 2)
        item.add(-accounts.MUCH // 2)
        await asyncio.sleep(0.1)
        assert not trimmed  # little was freed
        item.add(2 * accounts.MUCH)
        await asyncio.sleep(0.1)
        assert not trimmed  # it is held
        item.close()
        await asyncio.sleep(0.1)
        task.cancel()

    asyncio.run(run())
    assert trimmed == [0]


def test_a_bundle_is_passed_on_while_it_comes(triton: Server, serve: Serve) -> None:
    """So the gateway holds a part of it: two that are as large as all of its memory have room at once."""
    http = serve(triton.url, memory_bytes=12 * MB, max_bundle_bytes=12 * MB)
    both, bundle = threading.Barrier(2), os.urandom(10 * MB)

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        both.wait(60)
        return {"result": b'{"speakers": []}'}

    triton.answer = answer
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(http.post, "/v1/audio/bundle", content=bundle) for _ in range(2)]
        assert [each.result(60).status_code for each in found] == [200, 200]
    sent: dict[bytes, bytes] = {}
    for _, inputs in triton.asked:
        sent[inputs["name"]] = sent.get(inputs["name"], b"") + inputs["audio"]
    assert [*sent.values()] == [bundle, bundle]
