"""Deepgram's calls over HTTP and its WebSocket `/v2/speak`: with its official client as it comes, and one by one."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import soundfile
from deepgram import DeepgramClient
from deepgram.core.api_error import ApiError
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v2.types import SpeakV2Configure, SpeakV2Interrupt, SpeakV2Speak
from voice_clone_gateway.voices.ids import voice_id

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.speech_double import FRAME
from tests.support.doubles.triton_double import Server
from tests.support.doubles.voice_book import VoiceBook
from tests.support.doubles.websocket_calls import Gateway, run
from tests.support.official.vendor_calls import calling

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:websockets.*deprecated:DeprecationWarning"),  # by Deepgram's client
]
ANN, BOB = "ann-has-a-key-of-some-length", "bob-has-a-key-of-some-length"
TEXT = "Hello."
PATH = "/v2/speak?model=ada"


@pytest.fixture
def http(triton: Server, serve: Serve, tmp_path: Path) -> Iterator[httpx2.Client]:
    VoiceBook(triton, ("ada", "ann"), ("house", ""))
    keys = tmp_path / "keys"
    keys.write_text(f"{ANN} speak name=ann owner\n{BOB} speak name=bob owner\n")
    client = serve(triton.url, api_keys_file=str(keys), default_voice="house")
    client.headers["Authorization"] = f"Token {ANN}"
    yield client


@contextlib.contextmanager
def calling_at(port: int | None, token: str | None = None) -> Iterator[DeepgramClient]:
    """The official client of a gateway; it does not close its connections by itself."""
    http, url = f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}"
    environment = DeepgramClientEnvironment(base=http, production=url, agent=url, agent_rest=http)
    with httpx.Client(trust_env=False) as inner:
        yield DeepgramClient(api_key=ANN, access_token=token, environment=environment, httpx_client=inner)


@pytest.fixture
def client(http: httpx2.Client) -> Iterator[DeepgramClient]:
    with calling_at(http.base_url.port) as client:
        yield client


@pytest.mark.parametrize(
    ("options", "kind", "rate"),
    [
        ({}, "MP3", 22050),
        ({"encoding": "linear16"}, "WAV", 24000),
        ({"encoding": "linear16", "sample_rate": 48000}, "WAV", 48000),
        ({"encoding": "mulaw"}, "WAV", 8000),
        ({"encoding": "alaw", "sample_rate": 16000}, "WAV", 16000),
        ({"encoding": "opus", "container": "ogg", "bit_rate": 12000}, "OGG", 48000),
        ({"encoding": "flac"}, "FLAC", 24000),
    ],
)
def test_files(client: DeepgramClient, options: dict[str, Any], kind: str, rate: int) -> None:
    for version in (client.speak.v1, client.speak.v2):
        heard = b"".join(version.audio.generate(text=TEXT, model="ada", **options))
        with soundfile.SoundFile(io.BytesIO(heard)) as file:
            assert (file.format, file.samplerate) == (kind, rate)


@pytest.mark.parametrize(("encoding", "size"), [("linear16", 2 * 3 * 1920), ("mulaw", 1920), ("alaw", 1920)])
def test_audio_without_a_container(client: DeepgramClient, encoding: Any, size: int) -> None:
    heard = client.speak.v1.audio.generate(text=TEXT, model="ada", encoding=encoding, container="none")
    assert len(b"".join(heard)) == size


def test_headers(client: DeepgramClient, triton: Server) -> None:
    options: dict[str, Any] = {"model": voice_id("ann", "ada"), "speed": 1.5, "tag": ["a", "b"], "mip_opt_out": True}
    with client.speak.v1.audio.with_raw_response.generate(text=TEXT, **options) as answer:
        assert b"".join(answer.data) and answer.headers["dg-char-count"] == "6"
        assert answer.headers["dg-request-id"] == answer.headers["x-request-id"]
        assert answer.headers["dg-model-name"] == options["model"] and answer.headers["dg-model-uuid"]
        assert "x-speech-warning" not in answer.headers
    assert triton.speeches[-1][1]["voice"] == b"ada"


@pytest.mark.parametrize("model", ["aura-2-thalia-en", "flux-alexis-en"])
def test_the_vendor_s_voices_are_the_default_voice(client: DeepgramClient, triton: Server, model: str) -> None:
    with client.speak.v2.audio.with_raw_response.generate(text=TEXT, model=model, expressivity=1) as answer:
        assert b"".join(answer.data)
        assert "expressivity" in answer.headers["x-speech-warning"] and "'house'" in answer.headers["x-speech-warning"]
    assert triton.speeches[-1][1]["voice"] == b"house"


def test_models(http: httpx2.Client, client: DeepgramClient) -> None:
    found = client.manage.v1.models.list()
    assert found.stt == [] and found.tts is not None
    assert [model.canonical_name for model in found.tts] == ["ada", "house"]
    assert client.manage.v1.models.get(found.tts[0].uuid_ or "").name == "ada"
    assert http.get("/v1/models/house").json()["name"] == "house"
    bob = {"Authorization": f"Token {BOB}"}
    assert [each["name"] for each in http.get("/v1/models", headers=bob).json()["tts"]] == ["house"]
    for name in ("ada", voice_id("ann", "ada"), "x" * 5000):
        answer = http.get(f"/v1/models/{name}", headers=bob)
        assert (answer.status_code, answer.json()["err_code"]) == (404, "VOICE_NOT_FOUND")
    assert http.get("/v1/models", headers={"Authorization": f"Bearer {ANN}"}).json()["object"] == "list", "OpenAI's"


def test_tokens(http: httpx2.Client, client: DeepgramClient) -> None:
    granted = client.auth.v1.tokens.grant(ttl_seconds=60)
    assert granted.expires_in == 60
    with calling_at(http.base_url.port, granted.access_token) as bearer:
        assert b"".join(bearer.speak.v1.audio.generate(text=TEXT, model="ada"))
        with pytest.raises(ApiError) as error:
            bearer.auth.v1.tokens.grant()
    assert error.value.status_code == 403


def test_a_gateway_without_keys_grants_too(triton: Server, serve: Serve) -> None:
    http = serve(triton.url)
    token = http.post("/v1/auth/grant").json()["access_token"]
    assert http.post("/v1/speak?model=ada", json={"text": TEXT}, headers={"Authorization": f"Bearer {token}"}).content


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("encoding=xyz", "linear16, mulaw, alaw, mp3"),
        ("encoding=mp3&container=wav", "container"),
        ("sample_rate=11025", "sample_rate"),
        ("sample_rate=fast", "sample_rate"),
        ("bit_rate=-1", "bit_rate"),
        ("speed=nan", "speed"),
        ("callback=http://x", "callback"),
        (f"model={'m' * 5000}", "model"),
    ],
)
def test_options_that_are_refused(http: httpx2.Client, query: str, words: str) -> None:
    for version in ("v1", "v2"):
        answer = http.post(f"/{version}/speak?{query}", json={"text": TEXT})
        assert answer.status_code == 400 and words in answer.json()["err_msg"], answer.text
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("body", [[], {}, {"text": 3}, {"text": ""}, {"text": "  "}])
def test_bodies_that_are_refused(http: httpx2.Client, body: Any) -> None:
    answer = http.post("/v1/speak?model=ada", json=body)
    assert answer.status_code == 400 and not answer.json()["err_msg"].startswith("input"), answer.text


def turns_of(gateway: Gateway) -> list[Any]:
    """What the official client hears in a session of two turns, each complete."""
    with calling_at(gateway.port) as client, client.speak.v2.connect(model="ada", encoding="linear16") as connection:
        for text in ("Good ", "morning, ", "all. "):
            connection.send_speak(SpeakV2Speak(text=text))
        connection.send_flush()
        connection.send_configure(SpeakV2Configure(speed=0.5))
        connection.send_configure(SpeakV2Configure(speed=3.0))
        connection.send_speak(SpeakV2Speak(text="Again. "))
        connection.send_flush()
        connection.send_close()
        return [*connection]


def test_turns() -> None:
    async def test(gateway: Gateway) -> None:
        heard = await asyncio.to_thread(turns_of, gateway)
        told = {
            kind: [m for m in heard if getattr(m, "type", "") == kind]
            for kind in {getattr(m, "type", "") for m in heard}
        }
        kinds = [m.type for m in heard if not isinstance(m, bytes) and not m.type.startswith("Configure")]
        turn = ["SpeechStarted", "SpeechMetadata", "Flushed"]
        assert kinds == ["Connected", *turn, *turn, "SessionMetadata"]
        assert told["Connected"][0].model_name == "ada" and len(told["Connected"][0].model_uuids) == 1
        assert told["ConfigureSuccess"][0].applied.speed == 0.5
        assert told["ConfigureFailure"][0].code == "SPEED_OUT_OF_RANGE" and told["ConfigureFailure"][0].value == 3.0
        milliseconds = [3 * 80, 2 * 80]
        assert [m.audio_duration_ms for m in told["SpeechMetadata"]] == milliseconds
        assert len({m.speech_id for kind in turn for m in told[kind]}) == 2
        [total] = told["SessionMetadata"]
        assert (total.total_audio_duration_ms, total.total_input_character_count) == (sum(milliseconds), 26)
        assert sum(len(m) for m in heard if isinstance(m, bytes)) == (3 + 2) * FRAME * 2

    run(test)


def test_an_interruption() -> None:
    def speak(gateway: Gateway) -> tuple[Any, Any, Any]:
        with calling_at(gateway.port) as client, client.speak.v2.connect(model="ada") as connection:
            assert connection.recv().type == "Connected"  # type: ignore[union-attr]
            connection.send_interrupt()
            nothing = connection.recv()
            connection.send_speak(SpeakV2Speak(text="One two three "))
            for _ in range(3):
                connection.recv()
            offset = SpeakV2Interrupt(playback_offset={"type": "time_ms", "value": 100})  # type: ignore[arg-type]
            connection.send_interrupt(offset)
            while isinstance(answer := connection.recv(), bytes):
                pass
            connection.send_interrupt(offset)
            again = connection.recv()
            connection.send_close()
            assert [m.type for m in connection] == ["SessionMetadata"]  # type: ignore[union-attr]
        return nothing, answer, again

    async def test(gateway: Gateway) -> None:
        nothing, answer, again = await asyncio.to_thread(speak, gateway)
        assert (nothing.type, nothing.code) == ("Warning", "NO_AUDIO_GENERATED")
        assert (answer.type, answer.audio_played_ms) == ("SpeechInterrupted", 100)
        assert answer.text_spoken + answer.text_remaining == "One two three " and answer.text_spoken
        assert (again.type, again.code) == ("Warning", "INVALID_INTERRUPT_OFFSET")
        assert all(speech.closed.is_set() for speech in gateway.double.speeches)

    run(test)


@pytest.mark.parametrize(
    "message",
    [
        "no json",
        "[]",
        b"audio",
        '{"type": "Speak"}',
        '{"type": "Clear"}',
        '{"type": "Configure", "speed": NaN}',
        '{"type": "Interrupt", "playback_offset": {"type": "words", "value": 1}}',
    ],
)
def test_messages_that_cannot_be_followed(message: str | bytes) -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH) as caller:
            assert (await caller.next())["type"] == "Connected"
            await caller.connection.send(message)
            [error], code = await caller.rest()
            assert (error["type"], code) == ("Error", 1008)

    run(test)


def test_a_flush_without_text() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH) as caller:
            await caller.send(type="Flush")
            assert (await caller.until(type="Warning"))[-1]["code"] == "NO_ACTIVE_SPEECH"

    run(test)
