"""For whom the gateway calls the server, and how urgent it is."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.types import Message, Receive, Scope, Send
from voice_clone_client.callers import on_behalf_of
from voice_clone_gateway.http import speech_first
from voice_clone_gateway.http.speech_first import AfterSpeech, Listeners, SpeechFirst
from voice_clone_gateway.routes import batch
from websockets.sync.client import connect

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import PART, Server, speech
from tests.support.waiting import WAIT, until

KEYS = {"a": "name=alice owner", "a2": "name=alice owner", "b": "name=bob", "c": "", "d": ""}
CLIP = (Path(__file__).parents[3] / "tools" / "data" / "reference.wav").read_bytes()
VOICES = "/v1/audio/voices"
SPEECH = {"input": "Hello there.", "voice": "ada", "response_format": "pcm"}


@pytest.fixture
def http(triton: Server, serve: Serve, tmp_path: Path) -> httpx2.Client:
    (tmp_path / "keys").write_text("\n".join(f"key-{name} speak,manage {rules}" for name, rules in KEYS.items()))
    return serve(triton.url, api_keys_file=str(tmp_path / "keys"))


def ask(http: httpx2.Client, triton: Server, key: str, way: str) -> Iterator[tuple[str, str]]:
    """Caller and urgency of the calls that one request makes."""
    before, headers = len(triton.callers), {"Authorization": f"Bearer key-{key}"}
    if way == "websocket":
        url = f"{http.base_url}/v1/audio/speech/stream".replace("http", "ws", 1).replace("//v1", "/v1")
        with connect(url, proxy=None, additional_headers=headers) as session:
            for message in (
                {"type": "session.config", "voice": "ada"},
                {"type": "input.text", "text": "Hello there."},
                {"type": "input.done"},
            ):
                session.send(json.dumps(message))
            while isinstance(got := session.recv(WAIT), bytes) or json.loads(got)["type"] != "session.done":
                pass
    elif way == "list":
        http.get("/v1/audio/voices", headers=headers)
    elif way == "batch":
        items = [{"input": "One."}, {"input": "Two."}]
        assert http.post("/v1/audio/speech/batch", json={"voice": "ada", "items": items}, headers=headers).is_success
    else:
        assert http.post("/v1/audio/speech", json={**SPEECH, "stream": way == "stream"}, headers=headers).is_success
    yield from triton.callers[before:]


@pytest.mark.parametrize("way", ["stream", "whole", "batch", "websocket", "list"])
def test_each_way_says_for_whom_it_is(http: httpx2.Client, triton: Server, way: str) -> None:
    found = {key: {caller for caller, _ in ask(http, triton, key, way) if caller} for key in KEYS}
    assert all(len(callers) == 1 for callers in found.values())
    assert found["a"] == found["a2"], "the keys of one owner are one caller"
    assert len(set.union(*found.values())) == 4
    assert not any(name in caller for caller in set.union(*found.values()) for name in ("alice", "bob", "key"))


def test_a_batch_is_not_urgent(http: httpx2.Client, triton: Server) -> None:
    assert {urgency for caller, urgency in ask(http, triton, "a", "batch") if caller} == {"batch"}
    assert {urgency for _, urgency in ask(http, triton, "a", "stream")} == {""}


def test_only_the_first_sentence_is_urgent(http: httpx2.Client, triton: Server) -> None:
    text = "The old captain sold his boat and went home. " * 30
    before = len(triton.callers)
    headers = {"Authorization": "Bearer key-a"}
    assert http.post("/v1/audio/speech", json={**SPEECH, "input": text}, headers=headers).is_success
    urgencies = [urgency for caller, urgency in triton.callers[before:] if caller]
    assert urgencies.count("") >= 1 and set(urgencies[urgencies.index("next") :]) == {"next"}


def test_without_keys_an_address_is_a_caller(triton: Server, serve: Serve) -> None:
    http = serve(triton.url)
    http.get("/v1/audio/voices")
    http.get("/v1/audio/voices")
    callers = {caller for caller, _ in triton.callers if caller}
    assert len(callers) == 1 and "127" not in callers.pop()


def test_requests_wait_for_first_audio_and_begin_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech_first, "PATIENCE", 60.0)

    async def run() -> None:
        listeners, begun, go = Listeners(), list[str](), asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            begun.append(scope["path"])
            if scope["method"] == "POST":
                while (await receive()).get("more_body"):
                    pass
                begun.append(f"body of {scope['path']}")
            await go.wait()
            await send({"type": "http.response.start"})

        async def nothing(*_: Message) -> Message:
            return {}

        first = SpeechFirst(app, listeners, lambda connection: connection.scope["client"])

        def ask(path: str, method: str = "GET", client: str = "ada") -> asyncio.Task[None]:
            scope = {"type": "http", "method": method, "path": path, "client": client}
            return asyncio.create_task(first(scope, nothing, nothing))

        with listeners.waiting("one"), listeners.waiting("two"):
            tasks = [ask("/v1/audio/voices"), ask("/health"), ask("/v1/audio/speech", "POST")]
            await asyncio.sleep(0.01)
            assert begun == ["/v1/audio/speech", "body of /v1/audio/speech"]
            listeners.heard("one")
            await asyncio.sleep(0.01)
            assert len(begun) == 2
            listeners.heard("two")
            await asyncio.sleep(0.01)
            assert begun[2:] == ["/v1/audio/voices"], "the next one waits for this one's answer"
            tasks += [ask("/v1/models"), ask("/v1/audio/bundle", client="bob")]
            await asyncio.sleep(0.01)
            assert begun[3:] == ["/v1/audio/bundle"], "but not another caller's"
        go.set()
        await asyncio.gather(*tasks)
        assert begun[4:] == ["/health", "/v1/models"]

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/voices"])
def test_the_bodies_of_a_caller_are_handled_one_by_one(path: str) -> None:
    async def run() -> list[str]:
        handled, whole = list[str](), asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            while (await receive())["more_body"]:
                pass
            for _ in range(9):
                handled.append(scope["client"])
                await asyncio.sleep(0)
            await send({"type": "http.response.start"})

        async def body() -> Message:
            await whole.wait()
            return {"type": "http.request", "more_body": False}

        async def nothing(_: Message) -> None:
            pass

        first = SpeechFirst(app, Listeners(), lambda connection: connection.scope["client"][:1])
        scopes = [{"type": "http", "method": "POST", "path": path, "client": name} for name in ("a1", "a2", "b1")]
        tasks = [asyncio.create_task(first(scope, body, nothing)) for scope in scopes]
        await asyncio.sleep(0.01)  # all wait for their bodies, and none for another one's
        whole.set()
        await asyncio.gather(*tasks)
        return handled

    handled = asyncio.run(run())
    assert [name for name in handled if name != "b1"] in (["a1"] * 9 + ["a2"] * 9, ["a2"] * 9 + ["a1"] * 9)
    assert handled.index("b1") < 4, "another caller's waits for none of them"


def test_each_piece_of_a_body_has_its_turn() -> None:
    """All that one caller sends at once is else handled before another's next event."""

    async def run() -> int:
        handling, most = 0, 0

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal handling, most
            for _ in range(3):
                await receive()
                handling += 1
                most = max(most, handling)
                await asyncio.sleep(0)
                handling -= 1
            await send({"type": "http.response.start"})

        async def piece() -> Message:
            return {"type": "http.request", "body": b"x", "more_body": True}

        async def nothing(_: Message) -> None:
            pass

        first = SpeechFirst(app, Listeners(), lambda connection: connection.scope["client"])
        scope = {"type": "http", "method": "POST", "path": "/v1/audio/voices", "client": "a"}
        await asyncio.gather(*(first(scope, piece, nothing) for _ in range(8)))
        return most

    assert asyncio.run(run()) == 1


def test_items_of_many_batches_wait_for_each_other_but_not_for_those_of_another_caller(
    triton: Server, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MOST_ITEMS", 2)
    (tmp_path / "keys").write_text("key-a speak\nkey-b speak")
    http, go = serve(triton.url, api_keys_file=str(tmp_path / "keys")), threading.Event()

    def play(context: Any) -> Iterator[Any]:
        assert go.wait(WAIT)
        yield from speech(3)

    def post(key: str) -> httpx2.Response:
        order = {"voice": "ada", "items": [{"input": "One."}, {"input": "Two."}]}
        return http.post("/v1/audio/speech/batch", json=order, headers={"Authorization": f"Bearer key-{key}"})

    triton.play = play
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(post, key) for key in "aaa"]
        until(lambda: len(triton.spoken) == 2)
        answers.append(pool.submit(post, "b"))
        until(lambda: len(triton.spoken) == 3)
        time.sleep(0.2)
        assert len(triton.spoken) == 3
        go.set()
        assert all(answer.result(WAIT).json()["succeeded"] == 2 for answer in answers)


@pytest.mark.parametrize(("path", "field"), [("/v1/audio/voices", "audio_sample"), ("/v1/voices/add", "files")])
def test_voices_of_one_caller_are_made_two_at_a_time_where_another_one_speaks(
    triton: Server, serve: Serve, tmp_path: Path, path: str, field: str
) -> None:
    (tmp_path / "keys").write_text("key-a speak,manage\nkey-b speak,manage\nkey-c speak,manage")
    http, go = serve(triton.url, api_keys_file=str(tmp_path / "keys")), threading.Event()
    making = list[bytes]()

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] == b"upload":
            making.append(inputs["name"])
            assert go.wait(WAIT)
        return {"result": json.dumps({"name": "ada", "generation": 1}).encode()}

    def post(key: str) -> httpx2.Response:
        form, clip = {"name": "ada", "consent": "ours"}, {field: b"RIFF"}
        return http.post(path, data=form, files=clip, headers={"Authorization": f"Bearer key-{key}"})

    assert http.post("/v1/audio/speech", json=SPEECH, headers={"Authorization": "Bearer key-c"}).is_success
    triton.answer = answer
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(post, "a") for _ in range(3)]
        until(lambda: len(making) == 2)
        answers.append(pool.submit(post, "b"))
        until(lambda: len(making) == 3)
        time.sleep(0.2)
        assert len(making) == 3
        go.set()
        assert [answer.result(WAIT).status_code for answer in answers] == [200] * 4


def test_voices_of_a_caller_alone_wait_for_nothing() -> None:
    async def run() -> None:
        listeners, made = Listeners(), list[int]()
        after, go = AfterSpeech(listeners), asyncio.Event()

        async def make(number: int) -> None:
            async with after.turn():
                made.append(number)
                await go.wait()

        with on_behalf_of("me"), listeners.waiting("my own speech"):
            tasks = [asyncio.create_task(make(number)) for number in range(5)]
            await asyncio.sleep(0.01)
        assert made == [0, 1, 2, 3, 4]
        go.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())


def test_voices_wait_for_first_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech_first, "PATIENCE", 60.0)

    async def run() -> None:
        listeners, made = Listeners(), list[int]()
        after = AfterSpeech(listeners)

        async def make(number: int) -> None:
            async with after.turn():
                made.append(number)

        with listeners.waiting("one"):
            with on_behalf_of("other"):
                tasks = [asyncio.create_task(make(number)) for number in range(3)]
            await asyncio.sleep(0.01)
            assert not made
        await asyncio.gather(*tasks)
        assert made == [0, 1, 2]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("operation", "method", "path", "given"),
    [
        ("upload", "POST", VOICES, {"data": {"name": "ada", "consent": "ours"}, "files": {"audio_sample": CLIP}}),
        ("prepare", "POST", f"{VOICES}/ada/cache", {}),
        ("export", "GET", f"{VOICES}/ada/export", {}),
        ("export", "GET", f"{VOICES}/ada/audio", {}),
        ("export", "GET", "/v1/audio/bundle", {}),
        ("import", "POST", "/v1/audio/bundle", {"content": bytes(PART + 1)}),
    ],
)
def test_longer_work_has_a_turn_after_speech(
    triton: Server, serve: Serve, monkeypatch: pytest.MonkeyPatch, operation: str, method: str, path: str, given: Any
) -> None:
    turns, seen = 0, list[int]()

    @asynccontextmanager
    async def turn(self: AfterSpeech) -> AsyncIterator[None]:
        nonlocal turns
        turns += 1
        yield
        turns -= 1

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"].decode() == operation:
            seen.append(turns)
        voice = {"name": "ada", "artifacts": [], "generation": 1}
        return {"result": json.dumps(voice).encode(), "artifacts": bytes(PART + 1)}

    monkeypatch.setattr(AfterSpeech, "turn", turn)
    triton.answer = answer
    serve(triton.url).request(method, path, **given)
    assert seen and {*seen} == {1} and not turns


def test_websockets_of_a_caller_are_accepted_one_by_one() -> None:
    async def run() -> list[str]:
        begun, go = list[str](), asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            begun.append(scope["client"])
            await send(await receive())

        async def connect() -> Message:
            await go.wait()
            return {"type": "websocket.accept"}

        async def nothing(_: Message) -> None:
            pass

        first = SpeechFirst(app, Listeners(), lambda connection: connection.scope["client"][:1])
        tasks = [
            asyncio.create_task(first({"type": "websocket", "path": "/", "client": name}, connect, nothing))
            for name in ("a1", "a2", "b1")
        ]
        await asyncio.sleep(0.01)
        before = [*begun]
        go.set()
        await asyncio.gather(*tasks)
        assert begun == [*before, "a2"]
        return before

    assert asyncio.run(run()) == ["a1", "b1"]
