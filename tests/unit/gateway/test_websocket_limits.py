"""Where the WebSocket draws a line: wrong messages, too much at once, slow or idle clients, wrong keys and origins."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.doubles.clock import LoopClock
from tests.support.doubles.speech_double import Double
from tests.support.doubles.websocket_calls import Gateway, audio_of, eventually, pcm_of, run

WRONG: list[tuple[str | bytes, str, str]] = [
    ("no json", "invalid_json", "no JSON"),
    ("[1]", "invalid_argument", "session.config, input.text"),
    ('{"type": "speak"}', "invalid_argument", "session.config, input.text"),
    ('{"type": "input.text"}', "invalid_argument", "text: this field is required"),
    ('{"type": "input.text", "text": 3}', "invalid_argument", "text"),
    ('{"type": "cancel", "played_ms": -1}', "invalid_argument", "played_ms"),
    ('{"type": "session.config", "voice": "ada", "sede": 3}', "invalid_argument", "did you mean seed"),
    ('{"type": "session.config"}', "invalid_argument", "give one of voice"),
    ('{"type": "session.config", "voice": "ada", "speed": 9}', "invalid_argument", "speed"),
    (
        '{"type": "session.config", "voice": "ada", "response_format": "opus", "sample_rate": 44100}',
        "invalid_argument",
        "8000",
    ),
    (b"audio", "invalid_argument", "text frames"),
]


def test_messages_that_cannot_be_followed() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.send("input.text", text="Too early.")
            early = await caller.next()
            assert early["type"] == "error" and "session.config" in early["error"]["message"]
            await caller.configure()
            for message, code, words in WRONG:
                await caller.connection.send(message)
                error = await caller.next()
                assert error["type"] == "error"
                assert set(error["error"]) == {"message", "type", "param", "code"}
                assert error["error"]["code"] == code
                assert words in error["error"]["message"]
            await caller.send("input.text", text="It goes on.")
            await caller.send("input.done")
            assert audio_of(await caller.until("session.done")) == pcm_of("It goes on.", 0)

    run(test)


def test_a_slow_reader_slows_the_speech_down() -> None:
    async def test(gateway: Gateway) -> None:
        slow = socket.create_connection(("127.0.0.1", gateway.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        slow.setblocking(False)
        async with gateway.call(sock=slow, max_queue=1) as caller:
            await caller.configure()
            text = " ".join(f"This is sentence number{index} of many." for index in range(60))
            await caller.send("input.text", text=text)
            await caller.send("input.done")
            before = -1
            while before != len(gateway.double.speeches):  # until nothing moves any more
                before = len(gateway.double.speeches)
                await asyncio.sleep(0.5)
            assert before < 40
            await caller.send("cancel")
            messages = await caller.until("session.cancelled")
            assert messages[-1]["milliseconds"] == len(audio_of(messages)) / 48

    run(test, Double(frame=48000))


def test_a_session_may_last_longer_than_a_request_may_take_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)

    async def test(gateway: Gateway) -> None:
        async with gateway.call(ping_interval=None) as caller:
            clock.ahead += 20
            await asyncio.sleep(0.1)
            await caller.configure()
            await caller.send("input.text", text="Still here.")
            await caller.send("input.done")
            assert audio_of(await caller.until("session.done"))

    run(test, head_seconds=10.0)


def test_limits() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="Forty letters.\n\n")
            await caller.until("audio.start")
            await caller.send("input.text", text="x" * 40)
            error = (await caller.until("error"))[-1]
            assert "at most 40 characters" in error["error"]["message"]
            await caller.send("input.text", text="Short.")
            await caller.send("input.done")
            assert (await caller.until("session.done"))[-1]["characters"] == 22

            gateway.double.gate = asyncio.Semaphore(0)
            for _ in range(3):
                await caller.send("input.text", text="One more.")
                await caller.send("input.done")
            full = (await caller.until("error"))[-1]
            assert full["error"]["code"] == "too_many_utterances"
            await caller.send("input.text", text="x" * 20_000)
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    await caller.next()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009

    run(test, max_input_characters=40, session_utterances=2, max_body_bytes=10_000)


def test_a_text_that_is_refused_begins_no_utterance() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="x" * 41)
            assert "at most 40 characters" in (await caller.next())["error"]["message"]
            await caller.send("cancel")
            assert (await caller.next())["utterance_index"] is None
            await caller.send("input.text", text="Short.")
            await caller.send("input.done")
            assert (await caller.until("session.done"))[-1]["utterance_index"] == 0

    run(test, max_input_characters=40)


def test_as_many_speeches_as_the_gateway_allows() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as one, gateway.call() as other:
            for caller in (one, other):
                await caller.configure()
                await caller.send("input.text", text="A sentence. And")
                message = await caller.next()
                while isinstance(message, bytes):
                    message = await caller.next()
                assert message["type"] == ("audio.start" if caller is one else "error")
            assert message["error"]["code"] == "overloaded"
            await one.send("cancel")
            await one.until("session.cancelled")
            await other.send("input.done")
            await other.until("session.done")
            await other.send("input.text", text="Now there is room.")
            await other.send("input.done")
            assert audio_of(await other.until("session.done")) == pcm_of("Now there is room.", 0)

    run(test, max_requests=1)


def test_an_idle_session_is_closed() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="A sentence. And")
            messages = await caller.until("error")
            assert messages[-1]["error"]["code"] == "idle_timeout"
            with pytest.raises(ConnectionClosed) as closed:
                await caller.next()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008

    run(test, session_idle_seconds=1.5)


def test_a_session_that_only_listens_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, clock = asyncio.Semaphore(0), LoopClock(monkeypatch)

    async def test(gateway: Gateway) -> None:
        async with gateway.call(ping_interval=None) as caller:
            await caller.configure()
            await caller.send("input.text", text="Slowly.")
            await caller.send("input.done")
            await eventually(lambda: gateway.double.live == 1)
            await asyncio.sleep(0.1)
            clock.ahead += 20
            await asyncio.sleep(0.1)
            gate.release()
            assert audio_of(await caller.until("session.done")) == pcm_of("Slowly.", 0)

    run(test, Double(gate), session_idle_seconds=10.0)


def test_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("s3cret/+key= speak\nother manage\n")

    def coded(key: str) -> list[str]:
        return ["voice-clone", "bearer." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")]

    async def test(gateway: Gateway) -> None:
        for options, status in (
            ({}, 401),
            ({"additional_headers": {"Authorization": "Bearer wrong"}}, 401),
            ({"additional_headers": {"Authorization": "Bearer other"}}, 403),
            ({"subprotocols": coded("wrong")}, 401),
            ({"subprotocols": coded("other")}, 403),
            ({"subprotocols": ["bearer.!!"]}, 401),
        ):
            with pytest.raises(InvalidStatus) as refused:
                async with gateway.call(**options):
                    pass
            assert refused.value.response.status_code == status
            assert set(json.loads(refused.value.response.body)["error"]) == {"message", "type", "param", "code"}
        for options in (
            {"additional_headers": {"Authorization": "Bearer s3cret/+key="}},
            {"subprotocols": coded("s3cret/+key=")},
        ):
            async with gateway.call(**options) as caller:
                assert caller.connection.subprotocol == ("voice-clone" if "subprotocols" in options else None)
                await caller.configure()
                await caller.send("input.text", text="Allowed.")
                await caller.send("input.done")
                await caller.until("session.done")

    run(test, api_keys_file=str(keys))


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://127.0.0.1:{port}", True),
        ("https://listed.example", True),
        ("https://evil.example", False),
        ("http://127.0.0.1:1", False),
        ("null", False),
    ],
)
def test_pages_of_other_origins(origin: str, allowed: bool) -> None:
    async def test(gateway: Gateway) -> None:
        call = gateway.call(origin=origin.format(port=gateway.port))
        if allowed:
            async with call:
                return
        with pytest.raises(InvalidStatus) as refused:
            async with call:
                pass
        assert refused.value.response.status_code == 403

    run(test, cors_origins=("https://listed.example",))
