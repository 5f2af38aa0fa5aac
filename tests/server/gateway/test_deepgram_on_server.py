"""Deepgram's official client against a real server."""

from __future__ import annotations

import io
from collections.abc import Iterator

import httpx
import pytest
import soundfile
from deepgram import DeepgramClient
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v2.types import SpeakV2Speak

from perf.bench.gateway_process import Gateway

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.share("servers"),
    pytest.mark.filterwarnings("ignore:websockets.*deprecated:DeprecationWarning"),  # by Deepgram's client
]


@pytest.fixture
def deepgram(lenient_gateway: Gateway) -> Iterator[DeepgramClient]:
    http, url = lenient_gateway.url, lenient_gateway.url.replace("http", "ws")
    environment = DeepgramClientEnvironment(base=http, production=url, agent=url, agent_rest=http)
    with httpx.Client(trust_env=False) as inner:
        yield DeepgramClient(api_key="unused", environment=environment, httpx_client=inner)


def test_speech(deepgram: DeepgramClient, voice: str) -> None:
    for options, rate in (({}, 22050), ({"encoding": "mulaw"}, 8000)):
        heard = b"".join(deepgram.speak.v1.audio.generate(text="Good morning.", model=voice, **options))  # type: ignore[arg-type]
        samples, found = soundfile.read(io.BytesIO(heard))
        assert found == rate and len(samples) > rate / 2


def test_models(deepgram: DeepgramClient, voice: str) -> None:
    assert voice in {model.name for model in deepgram.manage.v1.models.list().tts or ()}


def test_a_turn(deepgram: DeepgramClient, voice: str) -> None:
    with deepgram.speak.v2.connect(model=voice, encoding="linear16") as connection:
        connection.send_speak(SpeakV2Speak(text="Good morning. "))
        connection.send_flush()
        connection.send_close()
        heard = [*connection]
    assert sum(len(message) for message in heard if isinstance(message, bytes)) > 24000
    kinds = [message.type for message in heard if not isinstance(message, bytes)]
    assert kinds == ["Connected", "SpeechStarted", "SpeechMetadata", "Flushed", "SessionMetadata"]
