"""Streams of speech, sync and async, against the protocol double."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import voice_clone_client as vc
from voice_clone_client import backends

from tests.support.doubles.triton_double import RATE, Failure, Server, chunk, empty_final, endless, samples_of, speech
from tests.support.waiting import WAIT


def silent_after_first(context: grpc.ServicerContext) -> Iterator[Any]:
    yield chunk(0)
    while context.is_active():
        time.sleep(0.01)


def collect_sync(url: str, **arguments: Any) -> tuple[list[vc.Chunk], Any]:
    with vc.Client(url) as client, client.speak("Hi.", voice="ada", **arguments) as speaking:
        return list(speaking), speaking.info


def collect_async(url: str, **arguments: Any) -> tuple[list[vc.Chunk], Any]:
    async def run() -> tuple[list[vc.Chunk], Any]:
        async with vc.AsyncClient(url) as client, client.speak("Hi.", voice="ada", **arguments) as speaking:
            return [piece async for piece in speaking], speaking.info

    return asyncio.run(run())


both = pytest.mark.parametrize("collect", [collect_sync, collect_async])
Collect = Callable[..., tuple[list[vc.Chunk], Any]]


def in_loop(run: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(run(), WAIT)

    asyncio.run(bounded())


@both
@pytest.mark.parametrize("last", [1920, 480, 0])
@pytest.mark.parametrize("tail", [[], [empty_final()]], ids=["flag-on-data", "empty-final"])
def test_chunks_arrive_whole(triton: Server, collect: Collect, last: int, tail: list[Any]) -> None:
    triton.play = lambda context: iter(speech(4, last) + tail)
    chunks, info = collect(triton.url)
    assert [piece.index for piece in chunks] == [0, 1, 2, 3]
    assert [piece.final for piece in chunks] == [False, False, False, True]
    assert {piece.sample_rate for piece in chunks} == {RATE}
    for piece in chunks:
        np.testing.assert_array_equal(piece.samples, samples_of(piece.index, last if piece.final else 1920))
        assert piece.samples.dtype == np.float32
    end = {"cache": "miss", "frames": 4, "finish_reason": "stop"}
    assert [piece.info for piece in chunks] == [{"cache": "miss"}, None, None, end]
    assert info == end


@both
def test_first_chunk_arrives_before_the_second_is_made(triton: Server, collect: Collect) -> None:
    received = threading.Event()

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        yield chunk(0)
        assert received.wait(WAIT)
        yield chunk(1, final=True)

    triton.play = play
    if collect is collect_sync:
        with vc.Client(triton.url) as client:
            speaking = client.speak("Hi.", voice="ada")
            assert next(speaking).index == 0
            received.set()
            assert [piece.index for piece in speaking] == [1]
    else:

        async def run() -> None:
            async with vc.AsyncClient(triton.url) as client:
                speaking = client.speak("Hi.", voice="ada")
                assert (await anext(speaking)).index == 0
                received.set()
                assert [piece.index async for piece in speaking] == [1]

        in_loop(run)


def test_read_joins_what_is_left(triton: Server) -> None:
    whole = np.concatenate([samples_of(index, 1920) for index in range(3)])
    with vc.Client(triton.url) as client:
        samples, rate = client.speak("Hi.", voice="ada").read()
        np.testing.assert_array_equal(samples, whole)
        assert rate == RATE
        speaking = client.speak("Hi.", voice="ada")
        next(speaking)
        np.testing.assert_array_equal(speaking.read()[0], whole[1920:])
        samples, rate = speaking.read()
        assert (samples.size, samples.dtype.name, rate) == (0, "float32", RATE)


def test_info_is_the_latest(triton: Server) -> None:
    with vc.Client(triton.url) as client:
        speaking = client.speak("Hi.", voice="ada")
        assert speaking.info is None
        infos = [speaking.info for _ in speaking]
        assert infos == [{"cache": "miss"}, {"cache": "miss"}, {"cache": "miss", "frames": 3, "finish_reason": "stop"}]


@pytest.mark.parametrize("reason", ["stop", "length", "budget", "runaway", "something new"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_speech_reports_whether_it_is_whole(triton: Server, reason: str, asynchronous: bool) -> None:
    triton.play = lambda context: iter([chunk(0), chunk(1, final=True, info={"finish_reason": reason})])
    whole = reason in ("stop", "length")

    async def speak(**arguments: Any) -> tuple[list[int], Any]:
        """The chunks that came, and the speech or its error."""
        seen = []
        try:
            if asynchronous:
                async with vc.AsyncClient(triton.url) as client, client.speak("Hi.", voice="ada", **arguments) as it:
                    async for piece in it:
                        assert it.finish_reason == (reason if piece.final else None)
                        seen.append(piece.index)
                    return seen, it
            with vc.Client(triton.url) as client, client.speak("Hi.", voice="ada", **arguments) as one:
                for piece in one:
                    assert one.finish_reason == (reason if piece.final else None)
                    seen.append(piece.index)
                return seen, one
        except vc.Incomplete as error:
            return seen, error

    seen, it = asyncio.run(speak())
    assert seen == [0, 1] and it.finish_reason == reason and it.whole == whole
    seen, it = asyncio.run(speak(require_whole=True))
    assert seen == [0, 1] and it.finish_reason == reason
    assert isinstance(it, vc.Incomplete) != whole


def test_an_end_without_a_reason_is_not_whole(triton: Server) -> None:
    triton.play = lambda context: iter([chunk(0, final=True, info={"finish_reason": None})])
    with vc.Client(triton.url) as client, pytest.raises(vc.Incomplete, match="no reason"):
        client.speak("Hi.", voice="ada", require_whole=True).read()


def test_read_async(triton: Server) -> None:
    async def run() -> None:
        async with vc.AsyncClient(triton.url) as client:
            samples, rate = await client.speak("Hi.", voice="ada").read()
            np.testing.assert_array_equal(samples, np.concatenate([samples_of(index, 1920) for index in range(3)]))
            assert rate == RATE

    in_loop(run)


@both
@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (speech(3)[:2], "ended after 2 chunks"),
        ([], "ended after 0 chunks"),
        ([empty_final()], "ended after 0 chunks"),
        ([chunk(0), chunk(2), chunk(3, final=True)], "chunk 2 came where chunk 1 was due"),
        ([chunk(0), chunk(0), chunk(1, final=True)], "chunk 0 came where chunk 1 was due"),
        ([chunk(1, final=True)], "chunk 1 came where chunk 0 was due"),
        ([chunk(0, final=True), chunk(1)], "chunk 1 came after the final one"),
    ],
    ids=["no-final", "nothing", "only-empty", "gap", "twice", "no-first", "after-final"],
)
def test_broken_stream(triton: Server, collect: Collect, messages: list[Any], text: str) -> None:
    triton.play = lambda context: iter(messages)
    with pytest.raises(vc.BrokenStream, match=text):
        collect(triton.url)


@both
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize(
    ("code", "details", "error", "text"),
    [
        (
            "NOT_FOUND",
            "in ensemble 'a', in ensemble 'a', speaker_not_found: no voice 'ada'",
            vc.VoiceNotFound,
            "no voice",
        ),
        ("NOT_FOUND", "in ensemble 'qwen3_tts', speaker_not_found: no voice 'ada'", vc.VoiceNotFound, "no voice 'ada'"),
        ("INTERNAL", "Failed: overloaded: 64 speeches wait already", vc.Overloaded, "64 speeches wait already"),
        ("UNAVAILABLE", "overloaded: the queue is full", vc.Overloaded, "the queue is full"),
        ("CANCELLED", "cancelled: the client left", vc.Cancelled, "the client left"),
        ("INVALID_ARGUMENT", "unexpected shape for 'text'", vc.InvalidArgument, "unexpected shape for 'text'"),
        ("UNAVAILABLE", "Server is stopping", vc.ConnectionFailed, "Server is stopping"),
        ("INTERNAL", "internal: the server failed to handle request 7", vc.Internal, "handle request 7"),
    ],
)
def test_errors_carry_their_class(
    triton: Server, collect: Collect, before: int, code: str, details: str, error: type[Exception], text: str
) -> None:
    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        yield from speech(9)[:before]
        raise Failure(grpc.StatusCode[code], details)

    triton.play = play
    with pytest.raises(error, match=text) as caught:
        collect(triton.url)
    assert type(caught.value) is error
    assert ": " not in str(caught.value).split(text)[0]  # neither slug nor prefix


@both
def test_an_error_may_come_long_after_the_last_chunk(triton: Server, collect: Collect) -> None:
    """A newer server holds an ensemble's error back until the steps that are at work have ended."""

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        yield from speech(9)[:2]
        time.sleep(0.5)
        message = empty_final()
        message.error_message = "in ensemble 'a', in ensemble 'a', overloaded: no room for the reference"
        yield message

    triton.play = play
    with pytest.raises(vc.Overloaded, match="no room for the reference"):
        collect(triton.url)


@both
def test_parameters_of_a_response_change_nothing(triton: Server, collect: Collect) -> None:
    """Newer servers have them, of models and of Triton; the final flag may come with the last chunk or by itself."""
    expected = collect(triton.url)

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        *messages, last = speech(3)
        last.infer_response.parameters["triton_final_response"].bool_param = True
        for index, message in enumerate((*messages, last)):
            message.infer_response.parameters["note"].string_param = f"chunk {index}"
            message.infer_response.parameters["ratio"].double_param = 0.5
            yield message

    triton.play = play
    chunks, info = collect(triton.url)
    assert info == expected[1]
    for chunk_, plain in zip(chunks, expected[0], strict=True):
        assert (chunk_.index, chunk_.final, chunk_.info) == (plain.index, plain.final, plain.info)
        np.testing.assert_array_equal(chunk_.samples, plain.samples)


@both
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Request for unknown model: 'any' is not found", vc.InvalidArgument),
        ("speaker_not_found: no voice 'ada'", vc.VoiceNotFound),
    ],
)
def test_error_inside_a_response(triton: Server, collect: Collect, text: str, error: type[Exception]) -> None:
    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        message = empty_final()
        message.error_message = text
        yield message

    triton.play = play
    with pytest.raises(error):
        collect(triton.url)


@both
def test_deadline(triton: Server, collect: Collect) -> None:
    triton.play = silent_after_first
    deadline = 0.3
    while not triton.speeches:  # a busy machine may need longer to send the request
        with pytest.raises(vc.DeadlineExceeded):
            collect(triton.url, deadline=deadline)
        deadline *= 2
    assert triton.left.acquire(timeout=WAIT)


@both
def test_no_server(collect: Collect) -> None:
    with pytest.raises(vc.ConnectionFailed):
        collect("127.0.0.1:1")


@both
def test_headers_of_a_stream(triton: Server, collect: Collect) -> None:
    collect(triton.url)
    assert "triton_grpc_error" not in triton.metadata[0], "answers to it take Triton 2.51 down now and then"


def test_close_reaches_the_server(triton: Server) -> None:
    triton.play = endless()
    with vc.Client(triton.url) as client:
        with client.speak("Hi.", voice="ada") as speaking:
            next(speaking)
        assert triton.left.acquire(timeout=WAIT)
        with pytest.raises(vc.Cancelled):
            next(speaking)
        with pytest.raises(vc.Cancelled):  # never silently short
            speaking.read()


def test_close_from_another_thread(triton: Server) -> None:
    triton.play = silent_after_first
    with vc.Client(triton.url) as client:
        speaking = client.speak("Hi.", voice="ada")
        next(speaking)
        timer = threading.Timer(0.2, speaking.close)
        timer.start()
        with pytest.raises(vc.Cancelled):
            next(speaking)
        timer.join()
        assert triton.left.acquire(timeout=WAIT)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_leaving_behind_the_last_chunk_cancels_nothing(
    triton: Server, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel close to the end of a stream may keep its model loaded (fault: late-cancel)."""
    monkeypatch.setattr(backends, "END_SECONDS", WAIT)  # a busy machine may end the stream late

    def ends_late(context: Any) -> Iterator[Any]:
        yield chunk(0, final=True, info={"cache": "hit"})
        time.sleep(0.3)

    async def leave() -> None:
        async with vc.AsyncClient(triton.url) as client, client.speak("Hi.", voice="ada") as speaking:
            assert (await anext(speaking)).final

    triton.play = ends_late
    if asynchronous:
        in_loop(leave)
    else:
        with vc.Client(triton.url) as client, client.speak("Hi.", voice="ada") as speaking:
            assert next(speaking).final
    assert not triton.left.acquire(timeout=0.1)


def test_close_after_the_end(triton: Server) -> None:
    with vc.Client(triton.url) as client:
        with client.speak("Hi.", voice="ada") as speaking:
            assert len(list(speaking)) == 3
        assert list(speaking) == []


def test_client_close_ends_its_speeches(triton: Server) -> None:
    triton.play = endless()
    client = vc.Client(triton.url)
    speaking = client.speak("Hi.", voice="ada")
    next(speaking)
    client.close()
    with pytest.raises(vc.Cancelled):
        speaking.read()
    assert triton.left.acquire(timeout=WAIT)


def test_async_close_reaches_the_server(triton: Server) -> None:
    triton.play = endless()

    async def run() -> None:
        async with vc.AsyncClient(triton.url) as client:
            async with client.speak("Hi.", voice="ada") as speaking:
                await anext(speaking)
            assert await asyncio.to_thread(triton.left.acquire, timeout=WAIT)
            with pytest.raises(vc.Cancelled):
                await anext(speaking)

    in_loop(run)


@pytest.mark.parametrize("closer", ["speech", "client", "client of the connections"])
def test_async_close_while_another_task_waits(triton: Server, closer: str) -> None:
    triton.play = silent_after_first

    async def run() -> None:
        client = vc.AsyncClient(triton.url)
        speaker = client.acting_for("eve") if closer == "client of the connections" else client
        speaking = speaker.speak("Hi.", voice="ada")
        await anext(speaking)
        waiting = asyncio.create_task(speaking.read())
        await asyncio.sleep(0.1)
        if closer == "speech":
            speaking.close()
        else:
            await client.close()
        with pytest.raises(vc.Cancelled):
            await waiting
        await client.close()
        assert await asyncio.to_thread(triton.left.acquire, timeout=WAIT)

    in_loop(run)


def test_async_task_cancelled(triton: Server) -> None:
    triton.play = silent_after_first

    async def run() -> None:
        async with vc.AsyncClient(triton.url) as client:
            speaking = client.speak("Hi.", voice="ada")
            await anext(speaking)
            waiting = asyncio.create_task(speaking.read())
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await asyncio.to_thread(triton.left.acquire, timeout=WAIT)

    in_loop(run)


def test_many_streams_over_one_client(triton: Server) -> None:
    meeting = threading.Barrier(8)

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        yield chunk(0)
        meeting.wait(WAIT)  # all eight are open at once
        yield chunk(1, final=True)

    triton.play = play
    with vc.Client(triton.url) as client:
        speeches = [client.speak("Hi.", voice="ada") for _ in range(8)]
        assert [[piece.index for piece in speaking] for speaking in speeches] == [[0, 1]] * 8


def test_async_client_made_outside_a_loop(triton: Server) -> None:
    client = vc.AsyncClient(triton.url)

    async def run() -> None:
        async with client:
            assert len((await client.speak("Hi.", voice="ada").read())[0]) == 3 * 1920

    in_loop(run)
