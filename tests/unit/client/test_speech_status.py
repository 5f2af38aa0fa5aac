"""`Speech.status`, sync and async: how a speech goes, and how it ended; the server is a double."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import voice_clone_client as vc

from tests.support.doubles.triton_double import RATE, Failure, Server, chunk, speech
from tests.support.waiting import until

SECONDS = 1920 / RATE  # of a chunk


class Both:
    """A speech of either client, driven from this thread."""

    def __init__(self, url: str, asynchronous: bool) -> None:
        self._loop = asyncio.new_event_loop() if asynchronous else None
        self._client: Any = self._run(self._open, url) if self._loop else vc.Client(url)

    @staticmethod
    async def _open(url: str) -> vc.AsyncClient:
        return vc.AsyncClient(url)

    def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        assert self._loop is not None
        return self._loop.run_until_complete(work(*arguments))

    @property
    def servers(self) -> Any:
        return getattr(self._client, "_client", self._client)._servers

    def speak(self, text: Any = "Hi.", **more: Any) -> Any:
        method = self._client.speak if isinstance(text, str) else self._client.speak_stream
        if self._loop is None:
            return method(text, voice="ada", **more)

        async def begin() -> Any:
            return method(text, voice="ada", **more)

        return self._run(begin)

    def next(self, spoken: Any) -> vc.Chunk:
        found: vc.Chunk = next(spoken) if self._loop is None else self._run(spoken.__anext__)
        return found

    def read(self, spoken: Any) -> None:
        """All that is left."""
        if self._loop is None:
            spoken.read()
        else:
            self._run(spoken.read)

    def close(self, spoken: Any) -> None:
        async def close() -> None:
            spoken.close()

        spoken.close() if self._loop is None else self._run(close)

    def end(self) -> None:
        if self._loop is None:
            self._client.close()
        else:
            self._run(self._client.close)
            self._loop.close()


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def client(triton: Server, request: pytest.FixtureRequest) -> Iterator[Both]:
    both = Both(triton.url, request.param)
    yield both
    both.end()


def test_a_speech_that_is_read(triton: Server, client: Both) -> None:
    spoken = client.speak()
    begun = spoken.status
    assert (begun.state, begun.finish_reason, begun.seconds) == ("running", None, 0.0)
    assert begun.first_audio_ms is None and begun.total_ms > 0
    client.next(spoken)
    running = spoken.status
    assert (running.state, running.finish_reason) == ("running", None)
    assert running.seconds == pytest.approx(SECONDS) and 0 < running.first_audio_ms <= running.total_ms
    client.read(spoken)
    ended = spoken.status
    assert (ended.state, ended.finish_reason, ended.error) == ("finished", "stop", None)
    assert ended.seconds == pytest.approx(3 * SECONDS) and ended.first_audio_ms == running.first_audio_ms
    assert ended.total_ms >= running.total_ms
    client.close(spoken)
    assert spoken.status == ended, "closed after its end, it stays as it is, and so do its times"


@pytest.mark.parametrize("text", ["Hi.", ["Hi."]], ids=["whole", "appended"])
def test_the_time_of_sending_counts(triton: Server, client: Both, text: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's stages begin with the request, so the speech's own time must not begin after them."""
    servers = client.servers
    stream = servers.stream

    def slow(*arguments: Any, **more: Any) -> Any:
        call = stream(*arguments, **more)
        time.sleep(0.1)
        return call

    monkeypatch.setattr(servers, "stream", slow)
    spoken = client.speak(text)
    assert spoken.status.total_ms >= 100
    client.close(spoken)


@pytest.mark.parametrize("begun", [False, True])
def test_a_speech_that_is_closed(triton: Server, client: Both, begun: bool) -> None:
    spoken = client.speak()
    if begun:
        client.next(spoken)
    client.close(spoken)
    with pytest.raises(vc.Cancelled):
        client.next(spoken)
    ended = spoken.status
    assert (ended.state, ended.finish_reason, ended.error) == ("cancelled", None, None)
    assert ended.seconds == pytest.approx(SECONDS * begun) and ended == spoken.status


def fails(context: Any) -> Iterator[Any]:
    yield chunk(0)
    raise Failure(grpc.StatusCode.UNAVAILABLE, "overloaded: the queue is full")


@pytest.mark.parametrize(
    ("play", "error", "chunks"),
    [
        (fails, vc.Overloaded, 1),
        (lambda context: iter(speech(3)[:2]), vc.BrokenStream, 2),
        (lambda context: iter([chunk(0), chunk(2)]), vc.BrokenStream, 1),
        (lambda context: iter([chunk(0, final=True), chunk(1)]), vc.BrokenStream, 1),
    ],
    ids=["refused", "no-end", "gap", "after-final"],
)
def test_a_speech_that_fails(
    triton: Server, client: Both, play: Any, error: type[vc.VoiceCloneError], chunks: int
) -> None:
    triton.play = play
    spoken = client.speak()
    with pytest.raises(error) as raised:
        client.read(spoken)
    assert spoken.status.state == "failed" and spoken.status.error is raised.value
    assert spoken.status.seconds == pytest.approx(chunks * SECONDS)


@pytest.mark.parametrize("required", [False, True])
def test_a_missed_end(triton: Server, client: Both, required: bool) -> None:
    triton.play = lambda context: iter([chunk(0, final=True, info={"finish_reason": "budget"})])
    spoken = client.speak(require_whole=required)
    if required:
        with pytest.raises(vc.Incomplete):
            client.read(spoken)
    else:
        client.read(spoken)
    assert spoken.status.finish_reason == "budget"
    assert spoken.status.state == ("failed" if required else "finished")
    assert isinstance(spoken.status.error, vc.Incomplete) == required


def test_a_text_that_fails_while_it_is_written(triton: Server, client: Both) -> None:
    def endless(context: Any) -> Iterator[Any]:
        yield chunk(0)
        until(lambda: not context.is_active())

    def text() -> Iterator[str]:
        yield "Good "
        raise ValueError("no more words")

    triton.play = endless
    spoken = client.speak(text())
    with pytest.raises(ValueError, match="no more words") as raised:
        client.read(spoken)
    assert spoken.status.state == "failed" and spoken.status.error is raised.value


def test_a_task_that_is_cancelled(triton: Server) -> None:
    def waits(context: Any) -> Iterator[Any]:
        yield chunk(0)
        until(lambda: not context.is_active())

    triton.play = waits

    async def run() -> vc.SpeechStatus:
        async with vc.AsyncClient(triton.url) as client:
            spoken = client.speak("Hi.", voice="ada")
            await anext(spoken)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(spoken), 0.05)
            return spoken.status

    assert asyncio.run(run()).state == "cancelled"
