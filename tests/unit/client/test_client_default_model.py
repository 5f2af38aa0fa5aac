"""The server's default family: asked for once, when it is needed, and by no call that names one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import voice_clone_client as vc

from tests.support.doubles.triton_double import FAMILY, Failure, Server, chunk
from tests.support.waiting import WAIT

FAMILIES = ["made_up", FAMILY]
VOICE = b'{"name": "ada"}'


@pytest.fixture
def release(triton: Server) -> Iterator[threading.Event]:
    """The double answers `stats` only after this is set."""
    event = threading.Event()

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] == b"stats":
            event.wait(WAIT)
        return {"result": VOICE}

    triton.answer = answer
    yield event
    event.set()


def fail(inputs: dict[str, Any]) -> dict[str, bytes]:
    raise Failure(grpc.StatusCode.UNAVAILABLE, "Server not ready")


def test_many_threads_ask_once(triton: Server) -> None:
    triton.model_types = FAMILIES
    triton.answer = lambda inputs: {"result": VOICE}
    triton.play = lambda context: iter([chunk(0, final=True)])
    meeting = threading.Barrier(8)

    def speak(client: vc.Client) -> None:
        meeting.wait(WAIT)
        client.speak("Hi.", voice="ada").read()

    with vc.Client(triton.url) as client, ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(speak, client) for _ in range(8)]:
            done.result(WAIT)
        client.prepare("ada")
        client.ready()
    assert triton.stats_calls == 1
    assert [model for model, _ in triton.speeches] == ["made_up"] * 8


def test_many_tasks_ask_once(triton: Server) -> None:
    triton.model_types = FAMILIES
    triton.answer = lambda inputs: {"result": VOICE}
    triton.play = lambda context: iter([chunk(0, final=True)])

    async def run() -> None:
        async with vc.AsyncClient(triton.url) as client:
            await asyncio.gather(*(client.speak("Hi.", voice="ada").read() for _ in range(8)))
            await client.prepare("ada")
            await client.speak("Hi.", voice="ada").read()

    asyncio.run(run())
    assert triton.stats_calls == 1
    assert [model for model, _ in triton.speeches] == ["made_up"] * 9


def test_a_model_that_is_named_costs_no_call(triton: Server) -> None:
    triton.model_types = FAMILIES
    triton.answer = lambda inputs: {"result": VOICE}

    async def run() -> None:
        async with vc.AsyncClient(triton.url, model=FAMILY) as client:
            await client.speak("Hi.", voice="ada").read()
        async with vc.AsyncClient(triton.url) as client:
            await client.speak("Hi.", voice="ada", model="made_up").read()

    asyncio.run(run())
    with vc.Client(triton.url, model=FAMILY) as client:
        client.speak("Hi.", voice="ada").read()
        client.speak("Hi.", voice="ada", model="made_up").read()
        client.prepare("ada", model="made_up")
    assert triton.calls[-1][1]["model_type"] == b"made_up"
    assert [model for model, _ in triton.speeches] == [FAMILY, "made_up"] * 2
    assert triton.stats_calls == 0


def test_upload_needs_no_default(triton: Server) -> None:
    with vc.Client(triton.url) as client:
        client.speak("Hi.", voice="ada").read()
        triton.answer = lambda inputs: {"result": VOICE}
        client.upload("ada", b"clip")
    assert "model_type" not in triton.calls[-1][1], "the server prepares the voice for all families"


def test_models(triton: Server) -> None:
    async def run() -> list[str]:
        async with vc.AsyncClient(triton.url) as client:
            return await client.models()

    triton.model_types = FAMILIES
    with vc.Client(triton.url, model="another") as client:
        assert client.models() == asyncio.run(run()) == FAMILIES


def speak_sync(triton: Server, **arguments: Any) -> None:
    with vc.Client(triton.url) as client:
        client.speak("Hi.", voice="ada", **arguments).read()


def speak_async(triton: Server, **arguments: Any) -> None:
    async def run() -> None:
        async with vc.AsyncClient(triton.url) as client:
            await client.speak("Hi.", voice="ada", **arguments).read()

    asyncio.run(run())


both = pytest.mark.parametrize("speak", [speak_sync, speak_async])


@both
def test_a_server_without_stats(triton: Server, speak: Any) -> None:
    def refuse(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(grpc.StatusCode.INVALID_ARGUMENT, "invalid_argument: operation stats is unknown")

    triton.answer = refuse
    with pytest.raises(vc.InvalidArgument, match="name the model family"):
        speak(triton)


@both
def test_a_server_without_families(triton: Server, speak: Any) -> None:
    triton.model_types = []
    with pytest.raises(vc.Unsupported, match="has no model family"):
        speak(triton)


def test_a_failure_is_not_kept(triton: Server) -> None:
    triton.answer = fail
    with vc.Client(triton.url) as client:
        with pytest.raises(vc.ConnectionFailed) as caught:
            client.speak("Hi.", voice="ada")
        assert "give model" not in str(caught.value), "another option would not help"
        triton.answer = lambda inputs: {"result": VOICE}
        client.speak("Hi.", voice="ada").read()

    async def run() -> None:
        triton.answer = fail
        async with vc.AsyncClient(triton.url) as client:
            with pytest.raises(vc.ConnectionFailed):
                await client.speak("Hi.", voice="ada").read()
            triton.answer = lambda inputs: {"result": VOICE}
            await client.speak("Hi.", voice="ada").read()

    asyncio.run(run())


@both
def test_the_deadline_includes_the_question(triton: Server, release: threading.Event, speak: Any) -> None:
    began = time.monotonic()
    with pytest.raises(vc.DeadlineExceeded):
        speak(triton, deadline=0.3)
    assert time.monotonic() - began < WAIT / 2
    assert triton.speeches == []


def test_the_deadline_of_a_thread_that_waits_for_another(triton: Server, release: threading.Event) -> None:
    with vc.Client(triton.url) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: client.speak("Hi.", voice="ada").read())
        while not triton.stats_calls:
            time.sleep(0.01)
        with pytest.raises(vc.DeadlineExceeded):
            client.speak("Hi.", voice="ada", deadline=0.2)
        release.set()
        first.result(WAIT)
    assert triton.stats_calls == 1


@pytest.mark.parametrize("ending", ["close", "cancel", "client"])
def test_a_speech_that_ends_before_the_default_is_known(triton: Server, release: threading.Event, ending: str) -> None:
    async def run() -> None:
        async with vc.AsyncClient(triton.url) as client:
            ended, other = client.speak("No.", voice="ada"), client.speak("Yes.", voice="ada")
            waiting, going = asyncio.create_task(ended.read()), asyncio.create_task(other.read())
            while not triton.stats_calls:
                await asyncio.sleep(0.01)
            if ending == "client":
                await client.close()
                for task in (waiting, going):
                    with pytest.raises(vc.Cancelled):
                        await task
                return
            if ending == "close":
                ended.close()
            else:
                waiting.cancel()
            with pytest.raises(vc.Cancelled if ending == "close" else asyncio.CancelledError):
                await waiting
            release.set()
            await going

    asyncio.run(asyncio.wait_for(run(), WAIT))
    assert [inputs["text"] for _, inputs in triton.speeches] == ([] if ending == "client" else [b"Yes."])


def test_a_speech_that_nothing_reads(triton: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with vc.AsyncClient("127.0.0.1:1") as client:
            client.speak("Hi.", voice="ada")
            await asyncio.sleep(0.2)

    asyncio.run(run())
    logged = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    # grpc.aio has one queue for all event loops of a process, and complains where a call of an earlier loop ends late.
    assert not [message for message in logged if "PollerCompletionQueue" not in message]
