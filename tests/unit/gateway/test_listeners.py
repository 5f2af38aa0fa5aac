"""Clients that read nothing, or slowly, of every kind of stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import websockets.asyncio.client
from websockets.exceptions import ConnectionClosed

from tests.support.doubles.clock import LoopClock
from tests.support.doubles.speech_double import RATE, Double, samples_of
from tests.support.doubles.websocket_calls import Gateway, eventually, run
from tests.support.waiting import WAIT

TEXT = "So many words that no buffer on the way to the client can hold all of them. " * 3
"""Less than a sentence's maximum, so it is spoken at once."""
FRAME = 2 * RATE
"""So a text has 90 s."""
PAUSE = 2.0
"""Seconds between what a slow client reads."""
CONFIG = {"type": "session.config", "voice": "ada"}
SPOKEN: list[dict[str, Any]] = [{"type": "input.text", "text": TEXT}, {"type": "input.done"}]
WEBSOCKETS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "own": ("/v1/audio/speech/stream", [CONFIG, *SPOKEN]),
    "own, base64": ("/v1/audio/speech/stream", [{**CONFIG, "audio_frames": "base64"}, *SPOKEN]),
    "own, by token": ("/v1/audio/speech/stream", [{**CONFIG, "streaming_mode": "token_level"}, *SPOKEN]),
    "Deepgram": ("/v1/speak?voice=ada", [{"type": "Speak", "text": TEXT}, {"type": "Flush"}]),
    "ElevenLabs": (
        "/v1/text-to-speech/ada/stream-input?output_format=pcm_24000",
        [{"text": " "}, {"text": TEXT}, {"text": ""}],
    ),
    "ElevenLabs, contexts": (
        "/v1/text-to-speech/ada/multi-stream-input?output_format=pcm_24000",
        [{"text": TEXT, "context_id": "one", "flush": True}, {"context_id": "one", "close_context": True}],
    ),
}
ANSWERS: dict[str, dict[str, Any]] = {
    "chunked": {},
    "events": {"stream_format": "sse"},
    "whole": {"stream": False},
}


def small_socket(port: int) -> socket.socket:
    """A connection with little room for what is not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
    connection.connect(("127.0.0.1", port))
    connection.setblocking(False)
    return connection


@contextlib.asynccontextmanager
async def sent(gateway: Gateway, data: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Send a request; nothing of the answer is read beyond a little buffer."""
    reader, writer = await asyncio.open_connection(sock=small_socket(gateway.port), limit=1 << 14)
    try:
        writer.write(data)
        yield reader
    finally:
        writer.close()


def speech(**fields: Any) -> bytes:
    """A request for a speech over HTTP."""
    body = json.dumps({"input": TEXT, "voice": "ada", "response_format": "pcm", **fields})
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What can still be read."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(-1), WAIT)
    return b""


@pytest.mark.parametrize("kind", WEBSOCKETS)
def test_a_websocket_that_reads_nothing(kind: str) -> None:
    async def test(gateway: Gateway) -> None:
        path, messages = WEBSOCKETS[kind]
        url = f"ws://127.0.0.1:{gateway.port}{path}"
        connection = small_socket(gateway.port)
        async with websockets.asyncio.client.connect(
            url, proxy=None, sock=connection, max_queue=1, close_timeout=1
        ) as listener:
            for message in messages:
                await listener.send(json.dumps(message))
            await eventually(lambda: gateway.live() == 1)
            await eventually(lambda: gateway.live() == 0)
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    await asyncio.wait_for(listener.recv(), WAIT)
            assert closed.value.rcvd is None, "no end was sent: what was not read is lost"

    run(test, Double(frame=FRAME), stall_seconds=0.5)


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_that_is_not_read(kind: str) -> None:
    async def test(gateway: Gateway) -> None:
        async with sent(gateway, speech(**ANSWERS[kind])) as reader:
            await eventually(lambda: bool(gateway.double.speeches) and gateway.live() == 0)
            await eventually(lambda: gateway.connections() == 0)  # the whole file has no place while it is sent
            assert len(await rest(reader)) < 1 << 20, "of 4 MB"

    run(test, Double(frame=FRAME), stall_seconds=0.5)


def test_other_answers_that_are_not_read() -> None:
    async def test(gateway: Gateway) -> None:
        async with sent(gateway, b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 20) as reader:
            await eventually(lambda: gateway.connections() == 1)
            await eventually(lambda: gateway.connections() == 0)
            assert (await rest(reader)).count(b"HTTP/1.1 200") < 20

    run(test, stall_seconds=0.5)


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_slow_answer_is_sent_to_its_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)

    async def test(gateway: Gateway) -> None:
        async with sent(gateway, speech(**ANSWERS[kind])) as reader:
            got = await reader.readuntil(b"\r\n\r\n")
            for _ in range(15):  # longer than the limit, in pauses that are shorter
                clock.ahead += PAUSE
                await asyncio.sleep(0.05)
                got += await reader.read(1 << 14)
            got += await rest(reader)
            assert len(got) > 2 * len(samples_of(TEXT, None, FRAME))

    run(test, Double(frame=FRAME), stall_seconds=7 * PAUSE)


def test_a_slow_websocket_hears_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)

    async def test(gateway: Gateway) -> None:
        connection = small_socket(gateway.port)
        async with gateway.call(sock=connection, max_queue=1, ping_interval=None) as caller:
            await caller.configure()
            await caller.send("input.text", text=TEXT)
            await caller.send("input.done")
            size = 0
            for _ in range(15):
                clock.ahead += PAUSE
                await asyncio.sleep(0.05)
                message = await caller.next()
                size += len(message) if isinstance(message, bytes) else 0
            rest = await caller.until("session.done")
            size += sum(len(message) for message in rest if isinstance(message, bytes))
            assert size == 2 * len(samples_of(TEXT, 7, FRAME))

    run(test, Double(frame=FRAME), stall_seconds=7 * PAUSE)
