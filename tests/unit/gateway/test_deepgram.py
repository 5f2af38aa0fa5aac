"""Deepgram's WebSocket `/v1/speak`: with its official client as it comes, and message by message."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from deepgram import DeepgramClient
from deepgram.core.events import EventType
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v1.types import SpeakV1Text
from voice_clone_client import VoiceNotFound
from websockets.exceptions import InvalidStatus

from tests.support.doubles.speech_double import FRAME, Double
from tests.support.doubles.websocket_calls import Gateway, run
from tests.support.official.vendor_calls import calling

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:websockets.*deprecated:DeprecationWarning"),  # by Deepgram's client
]
PATH = "/v1/speak?model=ada"


class WithoutVoices(Double):
    """A double of a server without voices."""

    async def get(self, name: str) -> Any:
        raise VoiceNotFound(name)

    async def aliases(self) -> dict[str, str]:
        return {}


def client_of(gateway: Gateway, key: str = "unused") -> DeepgramClient:
    url = f"127.0.0.1:{gateway.port}"
    environment = DeepgramClientEnvironment(
        base=f"http://{url}", production=f"ws://{url}", agent=f"ws://{url}", agent_rest=f"http://{url}"
    )
    return DeepgramClient(api_key=key, environment=environment)


def test_the_official_client() -> None:
    def speak(gateway: Gateway) -> list[Any]:
        heard: list[Any] = []
        options = {"model": "ada", "encoding": "linear16", "sample_rate": 24000, "speed": 1.0, "mip_opt_out": True}
        with client_of(gateway).speak.v1.connect(**options) as connection:  # type: ignore[arg-type]
            for kind in (EventType.OPEN, EventType.MESSAGE, EventType.ERROR, EventType.CLOSE):
                connection.on(kind, lambda value, kind=kind: heard.append((kind, value)))
            for text in ("Good ", "morning, ", "all. "):
                connection.send_text(SpeakV1Text(text=text))
            connection.send_flush()
            connection.send_text(SpeakV1Text(text="Again. "))
            connection.send_flush()
            connection.send_close()
            connection.start_listening()
        return heard

    async def test(gateway: Gateway) -> None:
        heard = await asyncio.to_thread(speak, gateway)
        assert [kind for kind, _ in heard[:1] + heard[-1:]] == [EventType.OPEN, EventType.CLOSE]
        messages = [value for kind, value in heard if kind is EventType.MESSAGE]
        assert len(messages) == len(heard) - 2, "no error"
        assert (messages[0].type, messages[0].model_name) == ("Metadata", "ada")
        flushed = [index for index, message in enumerate(messages) if getattr(message, "type", "") == "Flushed"]
        assert [messages[index].sequence_id for index in flushed] == [0, 1]
        sizes = [sum(map(len, part)) for part in (messages[1 : flushed[0]], messages[flushed[0] + 1 : flushed[1]])]
        assert sizes == [3 * FRAME * 2, 1 * FRAME * 2]
        assert gateway.double.texts == ["Good morning, all. ", "Again. "]
        assert gateway.double.speeches[0].options["voice"] == "ada"

    run(test)


def test_the_official_client_interrupts() -> None:
    def speak(gateway: Gateway) -> list[Any]:
        with client_of(gateway).speak.v1.connect(model="ada") as connection:
            connection.send_text(SpeakV1Text(text="One two "))
            messages = [connection.recv() for _ in range(3)]
            connection.send_clear()
            while getattr(messages[-1], "type", "") != "Cleared":
                messages.append(connection.recv())
            assert all(speech.closed.is_set() for speech in gateway.double.speeches)
            connection.send_text(SpeakV1Text(text="Yes? "))
            connection.send_flush()
            while getattr(messages[-1], "type", "") != "Flushed":
                messages.append(connection.recv())
        return messages

    async def test(gateway: Gateway) -> None:
        messages = await asyncio.to_thread(speak, gateway)
        sequence = [message if isinstance(message, bytes) else message.type for message in messages]
        assert [kind for kind in sequence if isinstance(kind, str)] == ["Metadata", "Cleared", "Flushed"]
        assert len(sequence) == 6, "two chunks before, one after"
        assert [message.sequence_id for message in messages if hasattr(message, "sequence_id")] == [0, 1]

    run(test)


def test_the_official_client_gets_the_error(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("s3cret speak\n")

    def refused(gateway: Gateway, key: str, **options: Any) -> int | None:
        with pytest.raises(InvalidStatus) as error, client_of(gateway, key).speak.v1.connect(**options):
            pass  # it knows the error of older versions of its WebSocket library, and passes this one on
        return error.value.response.status_code

    def failing(gateway: Gateway) -> list[Any]:
        heard: list[Any] = []
        with client_of(gateway, "s3cret").speak.v1.connect(model="ada") as connection:
            connection.on(EventType.ERROR, heard.append)
            connection.send_text(SpeakV1Text(text="..."))
            connection.send_flush()
            connection.start_listening()
        return heard

    async def test(gateway: Gateway) -> None:
        assert await asyncio.to_thread(refused, gateway, "other", model="ada") == 401
        assert await asyncio.to_thread(refused, gateway, "s3cret", model="ada", encoding="mp3") == 400
        [closed] = await asyncio.to_thread(failing, gateway)
        assert closed.rcvd.code == 1008 and "letter or digit" in closed.rcvd.reason

    run(test, api_keys_file=str(tmp_path / "keys"))


@pytest.mark.parametrize(
    ("query", "kind", "rate", "size"),
    [
        ("", "pcm", 24000, 2 * FRAME),
        ("&sample_rate=8000", "pcm", 8000, 2 * FRAME // 3),
        ("&encoding=mulaw", "mulaw", 8000, FRAME // 3),
        ("&encoding=alaw&sample_rate=8000&container=none&speed=2.0", "alaw", 8000, FRAME // 6),
        ("&container=wav", "wav", 24000, 2 * FRAME + 44),
        ("&encoding=alaw&container=wav&tag=a&tag=b", "wav_alaw", 8000, FRAME // 3 + 46),
    ],
)
def test_formats(query: str, kind: str, rate: int, size: int) -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH + query) as caller:
            await caller.send(type="Speak", text="Word", new_field=1)
            await caller.send(type="Flush", new_field=1)
            messages = await caller.until(type="Flushed")
        assert sum(len(message) for message in messages if isinstance(message, bytes)) == size

    run(test)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("&encoding=opus", "linear16, mulaw, alaw"),
        ("&sample_rate=11025", "sample_rate: it should be"),
        ("&sample_rate=fast", "no number"),
        ("&container=ogg", "none, wav"),
        ("&model=eve", "more than once"),
        ("&response_format=mp3", "contradicts"),
        ("&flush_after_ms=0", "flush_after_ms"),
        ("&x_vector_only=yes", "x_vector_only"),
    ],
)
def test_options_that_are_refused(query: str, words: str) -> None:
    async def test(gateway: Gateway) -> None:
        with pytest.raises(InvalidStatus) as refused:
            async with calling(gateway, PATH + query):
                pass
        assert refused.value.response.status_code == 400
        assert words in json.loads(refused.value.response.body)["err_msg"]

    run(test)


def test_the_gateway_s_own_options() -> None:
    async def test(gateway: Gateway) -> None:
        query = "&seed=7&new_option=1&x_vector_only=true&temperature=0.5&language=English"
        async with calling(gateway, PATH + query) as caller:
            await caller.send(type="Speak", text="Word")
            await caller.send(type="Flush")
            await caller.until(type="Flushed")
        asked = gateway.double.speeches[0].options
        assert {"seed": 7, "x_vector_only": True, "temperature": 0.5, "language": "English"}.items() <= asked.items()
        async with calling(gateway, "/v1/speak?voice=eve&model=tts-1&streaming_mode=sentence") as caller:
            await caller.send(type="Speak", text="Word")
            await caller.send(type="Flush")
            await caller.until(type="Flushed")
        assert gateway.double.speeches[1].options["voice"] == "eve"

    run(test)


def test_a_voice_of_deepgram_s_own() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, "/v1/speak?model=aura-2-andromeda-en") as caller:
            await caller.send(type="Speak", text="Word")
            await caller.send(type="Flush")
            warning = (await caller.until(type="Warning"))[-1]
            assert "'ada' speaks" in warning["description"] == warning["warn_msg"]
            await caller.until(type="Flushed")
        assert gateway.double.speeches[0].options["voice"] == "ada"

    run(test, WithoutVoices(), default_voice="ada")


@pytest.mark.parametrize(
    "options",
    [
        {"additional_headers": {"Authorization": "Token s3cret"}},
        {"additional_headers": {"Authorization": "Bearer s3cret"}},
        {"subprotocols": ["token", "s3cret"]},
        {"subprotocols": ["bearer", "s3cret"]},
    ],
)
def test_keys(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("s3cret speak\n")

    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH, **options) as caller:
            assert (await caller.next())["type"] == "Metadata"
            assert caller.connection.subprotocol == options.get("subprotocols", [None])[0]
        changed = json.loads(json.dumps(options).replace("s3cret", "other"))
        with pytest.raises(InvalidStatus) as refused:
            async with calling(gateway, PATH, **changed):
                pass
        assert refused.value.response.status_code == 401

    run(test, api_keys_file=str(tmp_path / "keys"))


def test_pages_of_other_origins() -> None:
    async def test(gateway: Gateway) -> None:
        for path in (PATH, "/v1/text-to-speech/ada/stream-input"):
            with pytest.raises(InvalidStatus) as refused:
                async with calling(gateway, path, origin="https://evil.example"):
                    pass
            assert refused.value.response.status_code == 403

    run(test)


@pytest.mark.parametrize("message", ["no json", "[]", '{"type": "Speak"}', '{"type": "Stop"}', b"audio"])
def test_messages_that_cannot_be_followed(message: str | bytes) -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH) as caller:
            await caller.next()
            await caller.connection.send(message)
            [error], code = await caller.rest()
            assert (error["type"], code) == ("Error", 1008)

    run(test)


def test_limits(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("s3cret speak name=Ann concurrent=1 characters_per_minute=40\n")
    key = {"additional_headers": {"Authorization": "Token s3cret"}}

    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH, **key) as caller:
            await caller.next()
            await caller.send(type="Speak", text="x" * 30)
            await caller.send(type="Speak", text="x" * 30)
            messages, code = await caller.rest()
            assert (messages[-1]["code"], code) == ("too_many_characters", 1008)
        async with calling(gateway, PATH, **key) as caller:
            await caller.next()
            await caller.connection.send("x" * 70_000)
            assert await caller.rest() == ([], 1009)
        gateway.double.gate = asyncio.Semaphore(0)
        async with calling(gateway, PATH, **key) as one, calling(gateway, PATH, **key) as other:
            for caller in (one, other):
                await caller.next()
                await caller.send(type="Speak", text="a ")
                await asyncio.sleep(0.05)
            messages, code = await other.rest()
            assert (messages[-1]["code"], code) == ("too_many_speeches", 1008)
        lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
        assert {(line["key"], line["action"], line["voice"]) for line in lines} == {("Ann", "speech", "ada")}
        assert {line["outcome"] for line in lines} == {"cancelled", "too_many_speeches"}

    run(test, api_keys_file=str(tmp_path / "keys"), audit_log=str(tmp_path / "audit"))


def test_an_idle_session_is_closed() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH) as caller:
            messages, code = await caller.rest()
            assert (messages[-1]["code"], code) == ("idle_timeout", 1008)

    run(test, session_idle_seconds=0.3)


def test_a_close_drops_what_was_not_flushed() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH) as caller:
            await caller.send(type="Speak", text="Said. ")
            await caller.send(type="Flush")
            await caller.send(type="Speak", text="Not said ")
            await caller.send(type="Close")
            await caller.send(type="Speak", text="Too late. ")
            messages, code = await caller.rest()
        assert code == 1000
        assert [message["type"] for message in messages if isinstance(message, dict)] == ["Metadata", "Flushed"]
        assert sum(len(message) for message in messages if isinstance(message, bytes)) == 2 * FRAME

    run(test, Double(asyncio.Semaphore(1)))
