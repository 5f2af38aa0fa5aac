"""The WebSocket on a real web server, in front of a client that makes known samples."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import soundfile
import uvicorn
import websockets.asyncio.client
from voice_clone_client.wav import pcm16
from voice_clone_gateway import Settings, create_app
from voice_clone_gateway.app import server_options
from voice_clone_gateway.long_speech import sentence_seed
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidStatus

from tests.unit.gateway.speech_double import FRAME, Double, samples_of

CONFIG = {"type": "session.config", "voice": "ada", "seed": 7}


class Caller:
    """One connection."""

    def __init__(self, connection: websockets.asyncio.client.ClientConnection) -> None:
        self.connection = connection

    async def send(self, kind: str, **values: Any) -> None:
        await self.connection.send(json.dumps({"type": kind, **values}))

    async def configure(self, **values: Any) -> None:
        await self.connection.send(json.dumps({**CONFIG, **values}))

    async def next(self) -> Any:
        """The next message, a dict or bytes."""
        message = await asyncio.wait_for(self.connection.recv(), 10)
        return message if isinstance(message, bytes) else json.loads(message)

    async def until(self, kind: str) -> list[Any]:
        """All messages up to one of this type."""
        found = [await self.next()]
        while isinstance(found[-1], bytes) or found[-1]["type"] != kind:
            found.append(await self.next())
        return found


@dataclass
class Gateway:
    """A running one."""

    port: int
    double: Double

    @contextlib.asynccontextmanager
    async def call(self, **options: Any) -> AsyncIterator[Caller]:
        url = f"ws://127.0.0.1:{self.port}/v1/audio/speech/stream"
        async with websockets.asyncio.client.connect(url, proxy=None, **options) as connection:
            yield Caller(connection)


def run(test: Callable[[Gateway], Awaitable[None]], double: Double | None = None, /, **settings: Any) -> None:
    """Run `test` with a gateway."""

    async def serve() -> None:
        nonlocal double
        double = double or Double()
        app = create_app(Settings(triton="127.0.0.1:1", **settings))
        options = {**server_options(app.state.settings), "timeout_graceful_shutdown": 2}
        server = uvicorn.Server(uvicorn.Config(app, **options))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            app.state.client = double
            try:
                await asyncio.wait_for(test(Gateway(listener.getsockname()[1], double)), 30)
            finally:
                server.should_exit = True
                await serving
        assert app.state.gate.live == 0
        assert all(one.closed.is_set() for one in double.speeches)

    asyncio.run(serve())


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


def audio_of(messages: list[Any]) -> bytes:
    return b"".join(message for message in messages if isinstance(message, bytes))


def told(messages: list[Any]) -> list[dict[str, Any]]:
    return [message for message in messages if isinstance(message, dict)]


def pcm_of(text: str, index: int, seed: int | None = 7) -> bytes:
    return pcm16(samples_of(text, sentence_seed(seed, index)))


def test_a_text_in_pieces() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="The first sentence here. Now ")
            first = await caller.until("audio.done")
            await caller.send("input.text", text="the sec")
            await caller.send("input.text", text="ond")
            await caller.send("input.done")
            rest = await caller.until("session.done")
        assert told(first) == [
            {
                "type": "audio.start",
                "utterance_index": 0,
                "sentence_index": 0,
                "sentence_text": "The first sentence here.",
                "start": 0,
                "end": 24,
                "format": "pcm",
                "sample_rate": 24000,
                "seed": 7,
            },
            {
                "type": "audio.done",
                "utterance_index": 0,
                "sentence_index": 0,
                "total_bytes": 4 * FRAME * 2,
                "milliseconds": 320,
            },
        ]
        assert audio_of(first) == pcm_of("The first sentence here.", 0)
        start, done, end = told(rest)
        assert (start["sentence_text"], start["start"], start["end"]) == ("Now the second", 25, 39)
        assert start["seed"] == sentence_seed(7, 1)
        assert done["milliseconds"] == 240
        assert audio_of(rest) == pcm_of("Now the second", 1)
        usage = end.pop("usage")
        assert (usage["input_tokens"], usage["output_tokens"]) == (7, 7)
        assert end == {
            "type": "session.done",
            "utterance_index": 0,
            "total_sentences": 2,
            "characters": 39,
            "milliseconds": 560,
        }
        assert [one.options["voice"] for one in gateway.double.speeches] == ["ada", "ada"]
        assert gateway.double.speeches[0].options["deadline"] == 600

    run(test)


def test_cancel_at_any_moment() -> None:
    gate = asyncio.Semaphore(5)

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="Three words here. Some more words. And so on. ")
            await caller.until("audio.done")
            got = [await caller.next() for _ in range(3)]
            assert audio_of(got) == pcm_of("Some more words.", 1)[: 2 * 2 * FRAME]
            await caller.send("cancel")
            assert await caller.next() == {
                "type": "session.cancelled",
                "utterance_index": 0,
                "sentences": 1,
                "characters": 17,
                "milliseconds": 400,
                "partial": {"sentence_text": "Some more words.", "start": 18, "end": 34, "milliseconds": 160},
            }
            assert all(one.closed.is_set() for one in gateway.double.speeches)
            gate.release()
            await caller.send("cancel")
            nothing = await caller.next()  # and no audio before it
            assert (nothing["type"], nothing["utterance_index"]) == ("session.cancelled", None)
            for _ in range(20):
                gate.release()
            await caller.send("input.text", text="Something else.")
            await caller.send("input.done")
            after = await caller.until("session.done")
            assert after[-1]["utterance_index"] == 1
            assert audio_of(after) == pcm_of("Something else.", 0)

    run(test, Double(gate))


def test_cancel_reports_what_was_heard() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(speed=2.0)
            await caller.send("input.text", text="Three words here. Some more words. And so on")
            await caller.until("audio.done")
            await caller.until("audio.done")
            await caller.send("cancel", played_ms=150)
            report = await caller.next()
            assert (report["sentences"], report["characters"], report["milliseconds"]) == (1, 17, 150)
            assert report["partial"]["milliseconds"] == 30

    run(test)


def test_cancel_before_anything_and_with_more_waiting() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            for text in ("One first utterance. ", "Another one."):
                await caller.send("input.text", text=text)
                await caller.send("input.done")
            await caller.send("input.text", text="Still being")
            await caller.send("cancel")
            reports = [await caller.next() for _ in range(3)]
            assert [report["utterance_index"] for report in reports] == [0, 1, 2]
            assert {report["milliseconds"] for report in reports} == {0}
            await caller.send("input.done")
            assert (await caller.next())["type"] == "session.done", "an utterance without text"
        assert len(gateway.double.speeches) <= 1

    run(test, Double(asyncio.Semaphore(0)))


def test_utterances_are_spoken_one_after_another() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="One utterance.")
            await caller.send("input.done")
            await caller.configure(seed=8, response_format="mulaw")
            await caller.send("input.text", text="  Another one.")
            await caller.send("input.done")
            one, other = await caller.until("session.done"), await caller.until("session.done")
        assert audio_of(one) == pcm_of("One utterance.", 0)
        assert [message["utterance_index"] for message in told(other)] == [1, 1, 1]
        start, done = told(other)[:2]
        assert (start["format"], start["sample_rate"], start["seed"], start["start"]) == ("mulaw", 8000, 8, 2)
        assert len(audio_of(other)) == 2 * FRAME // 3
        assert done["total_bytes"] <= 2 * FRAME // 3, "the resampler looks ahead"

    run(test)


def test_many_sessions_at_once_do_not_mix() -> None:
    async def one(gateway: Gateway, number: int) -> None:
        async with gateway.call() as caller:
            await caller.configure(seed=number)
            text = f"Session {number} speaks. It has two sentences."
            for letter in text:
                await caller.send("input.text", text=letter)
            await caller.send("input.done")
            messages = await caller.until("session.done")
        first, second = f"Session {number} speaks.", "It has two sentences."
        assert audio_of(messages) == pcm_of(first, 0, number) + pcm_of(second, 1, number)

    async def test(gateway: Gateway) -> None:
        await asyncio.gather(*(one(gateway, number) for number in range(20)))

    run(test)


def test_each_sentence_as_a_file() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(response_format="wav", stream_audio=False, sample_rate=48000)
            await caller.send("input.text", text="The first sentence. The second.")
            await caller.send("input.done")
            messages = await caller.until("session.done")
        files = [message for message in messages if isinstance(message, bytes)]
        assert [soundfile.info(io.BytesIO(file)).frames for file in files] == [3 * 2 * FRAME, 2 * 2 * FRAME]
        assert [message["total_bytes"] for message in told(messages) if message["type"] == "audio.done"] == [
            len(file) for file in files
        ]

    run(test)


def test_one_continuous_file_and_base64() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(response_format="wav", audio_frames="base64", sentence_pause_ms=100)
            await caller.send("input.text", text="The first sentence. The second.")
            await caller.send("input.done")
            messages = told(await caller.until("session.done"))
        data = b"".join(
            base64.b64decode(message["audio_b64"]) for message in messages if message["type"] == "audio.chunk"
        )
        expected = pcm_of("The first sentence.", 0) + bytes(2 * 2400) + pcm_of("The second.", 1)
        samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
        assert (rate, samples.tobytes()) == (24000, expected)

    run(test)


WRONG: list[tuple[str | bytes, str, str]] = [
    ("no json", "invalid_json", "no JSON"),
    ("[1]", "invalid_argument", "session.config, input.text"),
    ('{"type": "speak"}', "invalid_argument", "session.config, input.text"),
    ('{"type": "input.text"}', "invalid_argument", "text: this field is required"),
    ('{"type": "input.text", "text": 3}', "invalid_argument", "text"),
    ('{"type": "cancel", "played_ms": -1}', "invalid_argument", "played_ms"),
    ('{"type": "session.config", "voice": "ada", "sede": 3}', "invalid_argument", "do you mean seed"),
    ('{"type": "session.config"}', "invalid_argument", "exactly one of voice"),
    ('{"type": "session.config", "voice": "ada", "speed": 9}', "invalid_argument", "speed"),
    (
        '{"type": "session.config", "voice": "ada", "response_format": "mulaw", "sample_rate": 48000}',
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


def test_a_failing_sentence_ends_its_utterance_only() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="The first one here. Fail at this point. The third ")
            messages = await caller.until("error")
            assert audio_of(messages) == pcm_of("The first one here.", 0)
            error = messages[-1]
            assert (error["error"]["code"], error["utterance_index"], error["partial_audio"]) == ("overloaded", 0, True)
            await caller.send("input.text", text="and the rest of it. ")
            await caller.send("input.done")
            done = await caller.next()
            assert (done["type"], done["failed"], done["total_sentences"]) == ("session.done", True, 1)
            await caller.send("input.text", text="It goes on.")
            await caller.send("input.done")
            after = await caller.until("session.done")
            assert audio_of(after) == pcm_of("It goes on.", 0)
            await caller.send("input.text", text="... !")
            await caller.send("input.done")
            mute = told(await caller.until("session.done"))
            assert "letter" in mute[0]["error"]["message"] and mute[1]["failed"]

    run(test)


@pytest.mark.parametrize("abrupt", [False, True])
def test_a_client_that_leaves_stops_everything(abrupt: bool) -> None:
    gate = asyncio.Semaphore(2)

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="A sentence of many words. And another one. ")
            await caller.next()
            await caller.next()
            if abrupt:
                caller.connection.transport.abort()
        await eventually(lambda: all(one.closed.is_set() for one in gateway.double.speeches))

    run(test, Double(gate))


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


def test_a_session_that_only_listens_is_not_idle() -> None:
    gate = asyncio.Semaphore(0)

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="Slowly.")
            await caller.send("input.done")
            await asyncio.sleep(2.0)
            gate.release()
            assert audio_of(await caller.until("session.done")) == pcm_of("Slowly.", 0)

    run(test, Double(gate), session_idle_seconds=1.5)


def test_close() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="A sentence. And")
            await caller.until("audio.start")
            await caller.send("session.close")
            with pytest.raises(ConnectionClosedOK):
                while True:
                    await caller.next()

    run(test)


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


def test_halves_of_characters() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.connection.send('{"type": "input.text", "text": "Fun \\ud83d"}')
            await caller.connection.send('{"type": "input.text", "text": "\\ude00 it is."}')
            await caller.send("input.done")
            messages = told(await caller.until("session.done"))
            assert messages[0]["sentence_text"] == "Fun 😀 it is."

    run(test)
