"""A client that is closed: what becomes of the calls that wait."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import voice_clone_client as vc
from voice_clone_client.backends import EVENT_LOOP

from tests.support.doubles.triton_double import Server, speech
from tests.support.waiting import until

WAIT = 20.0


@pytest.fixture
def release(triton: Server) -> Iterator[threading.Event]:
    """The server answers nothing before it."""
    released = threading.Event()

    def play(context: Any) -> Iterator[Any]:
        released.wait(WAIT)
        yield from speech(1)

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        released.wait(WAIT)
        return {"result": b'{"name": "Ada"}'}

    triton.play, triton.answer = play, answer
    yield released
    released.set()


def get(client: vc.AsyncClient) -> Any:
    return client.get("Ada")


def read(client: vc.AsyncClient) -> Any:
    return client.speak("Hi.", voice="Ada").read()


async def waiting(client: vc.AsyncClient, call: Callable[[vc.AsyncClient], Any], triton: Server) -> asyncio.Task[Any]:
    """A task whose call is at the server."""

    async def run() -> Any:
        return await call(client)

    task = asyncio.create_task(run())
    while not triton.calls:
        await asyncio.sleep(0.01)
    return task


@pytest.mark.parametrize("used", [False, True])
def test_a_call_of_a_client_that_was_closed_before(triton: Server, used: bool) -> None:
    """Of either client, whether or not it had a connection."""

    async def run() -> None:
        other = vc.AsyncClient(triton.url, model="qwen3_tts")
        if used:
            await read(other)
        await other.close()
        for call in (get, read):
            with pytest.raises(vc.Cancelled, match="the client is closed"):
                await call(other)

    client = vc.Client(triton.url, model="qwen3_tts")
    if used:
        client.speak("Hi.", voice="Ada").read()
    client.close()
    for call in (client.list, lambda: client.speak("Hi.", voice="Ada").read()):
        with pytest.raises(vc.Cancelled, match="the client is closed"):
            call()
    asyncio.run(asyncio.wait_for(run(), WAIT))


def test_a_thread_that_waits_for_an_answer(triton: Server, release: threading.Event) -> None:
    with vc.Client(triton.url, model="qwen3_tts") as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.get, "Ada")
        until(lambda: bool(triton.calls))
        client.close()
        with pytest.raises(vc.Cancelled):
            answer.result(WAIT)


@pytest.mark.parametrize("call", [get, read])
def test_a_task_that_waits_for_an_answer(triton: Server, release: threading.Event, call: Any) -> None:
    async def run() -> None:
        async with vc.AsyncClient(triton.url, model="qwen3_tts") as client:
            task = await waiting(client, call, triton)
        with pytest.raises(vc.Cancelled):
            await task

    asyncio.run(asyncio.wait_for(run(), WAIT))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not say who has cancelled a task")
@pytest.mark.parametrize("call", [get, read])
def test_a_task_that_was_cancelled_before(triton: Server, release: threading.Event, call: Any) -> None:
    async def run() -> None:
        async with vc.AsyncClient(triton.url, model="qwen3_tts") as client:
            task = await waiting(client, call, triton)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(run(), WAIT))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not say who has cancelled a task")
def test_a_task_that_is_cancelled_when_its_call_has_just_ended() -> None:
    """The cancellation is not taken for an error of the call, after which it might be made again."""

    class Ended:
        """A call that is over, though its last message was not read."""

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            await asyncio.sleep(WAIT)

        def done(self) -> bool:
            return True

        async def details(self) -> str:
            return ""

    async def run() -> None:
        task = asyncio.create_task(EVENT_LOOP.next(Ended()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_a_task_that_waits_for_the_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, found = threading.Event(), threading.Event()

    def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.set()
        found.wait(WAIT)
        return [(None, None, None, "", ("127.0.0.1", port))]

    monkeypatch.setattr("voice_clone_client.servers.addresses.socket.getaddrinfo", look_up)

    async def run() -> None:
        async with vc.AsyncClient("dns:///voices.example:8001", model="qwen3_tts") as client:
            tasks = [asyncio.create_task(client.get("Ada")), asyncio.create_task(client.ready())]
            while not asked.is_set():
                await asyncio.sleep(0.01)
        with pytest.raises(vc.Cancelled):
            await tasks[0]
        assert await tasks[1] is False
        found.set()

    asyncio.run(asyncio.wait_for(run(), WAIT))
