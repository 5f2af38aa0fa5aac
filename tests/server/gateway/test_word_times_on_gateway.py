"""When each word is spoken, told by a gateway in front of a server with the model aligner. The demo's voice speaks."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import pytest
import websockets.sync.client
from elevenlabs.client import ElevenLabs
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from tests.support.servers.running import running
from voice_clone_server.demo import CLIP, SHIPPED
from voice_clone_server.families.recognition import OPTIONAL
from voice_clone_server.triton_server import MODELS

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

TEXT = "The old captain sold his boat. Please close the door, the teacher opened the window."
RATE = 24_000
SPOKEN: dict[str, Any] = {"voice": "ada", "seed": 7}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Client]]:
    """A gateway, and a client of the server behind it, which speaks and aligns."""
    folder = tmp_path_factory.mktemp("aligning")
    with running(SHIPPED, folder, [MODELS, OPTIONAL / "aligner"]) as server, Client(server.url) as client:
        client.upload("ada", CLIP.read_bytes(), wait=True)
        with Gateway(server.url, folder / "log") as gateway:
            yield gateway, client
            assert "Traceback" not in (folder / "log").read_text()


def timed(gateway: Gateway, **values: Any) -> tuple[list[dict[str, Any]], float]:
    """The words of a speech, and its seconds."""
    body = {**SPOKEN, "response_format": "pcm", "stream_format": "sse", "timestamp_granularities": ["word"], **values}
    words, size = list[dict[str, Any]](), 0
    url = f"{gateway.url}/v1/audio/speech"
    with httpx2.stream("POST", url, json=body, timeout=60.0, trust_env=False) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                words += event["words"]
                size += len(base64.b64decode(event.get("audio", "")))
    return words, size / 2 / RATE


def test_words_of_events_are_those_of_the_client(served: tuple[Gateway, Client]) -> None:
    gateway, client = served
    with client.speak_long(TEXT, words=True, **SPOKEN) as speech:
        speech.read()
    words, seconds = timed(gateway, input=TEXT)
    assert [word["word"] for word in words] == TEXT.split()
    assert not any(word["estimated"] for word in words) and words[-1]["end"] <= seconds
    assert [(word["start"], word["end"]) for word in words] == [
        (pytest.approx(word.start, abs=1e-4), pytest.approx(word.end, abs=1e-4)) for word in speech.words
    ]


def test_words_of_a_faster_speech_are_earlier(served: tuple[Gateway, Client]) -> None:
    gateway, _ = served
    usual, seconds = timed(gateway, input=TEXT)
    fast, shorter = timed(gateway, input=TEXT, speed=2.0)
    assert shorter == pytest.approx(seconds / 2, abs=1e-3)
    assert [word["start"] for word in fast] == pytest.approx([word["start"] / 2 for word in usual], abs=1e-3)


def test_words_behind_a_pause(served: tuple[Gateway, Client]) -> None:
    gateway, _ = served
    text = TEXT.replace(". ", ". [pause:1500ms] ")
    words, _ = timed(gateway, input=text, inline_pauses=True)
    assert [word["word"] for word in words] == TEXT.split() and not any(word["estimated"] for word in words)
    assert all(text[slice(*word["span"])] == word["word"] for word in words)
    assert words[6]["start"] - words[5]["end"] > 1.4


@pytest.mark.parametrize("mode", ["sentence", "token_level"])
def test_words_of_our_websocket(served: tuple[Gateway, Client], mode: str) -> None:
    gateway, _ = served
    words, size, url = list[dict[str, Any]](), 0, f"{gateway.url}/v1/audio/speech/stream".replace("http", "ws", 1)
    with websockets.sync.client.connect(url, proxy=None) as socket:
        config = {"type": "session.config", **SPOKEN, "streaming_mode": mode, "timestamp_granularities": ["word"]}
        texts = [{"type": "input.text", "text": f"{word} "} for word in TEXT.split()]
        for message in (config, *texts, {"type": "input.done"}):
            socket.send(json.dumps(message))
        kind = ""
        while kind != "session.done":
            message = socket.recv(timeout=60.0)
            if isinstance(message, bytes):
                size += len(message)
            else:
                kind = (said := json.loads(message))["type"]
                words += said["words"] if kind == "audio.words" else []
    assert [word["word"] for word in words] == TEXT.split() and not any(word["estimated"] for word in words)
    assert all(TEXT[slice(*word["span"])] == word["word"] for word in words)
    assert [word["start"] for word in words] == sorted(word["start"] for word in words)
    assert words[-1]["end"] <= size / 2 / RATE


def test_characters_of_elevenlabs(served: tuple[Gateway, Client]) -> None:
    gateway, _ = served
    words, seconds = timed(gateway, input=TEXT)
    with httpx.Client(trust_env=False) as http:
        calls = ElevenLabs(base_url=gateway.url, api_key="any", httpx_client=http).text_to_speech
        said = calls.convert_with_timestamps("ada", text=TEXT, seed=7, output_format="pcm_24000").alignment
        lines = [*calls.stream_with_timestamps("ada", text=TEXT, seed=7, output_format="pcm_24000")]
    assert said is not None and "".join(said.characters) == TEXT
    assert said.character_end_times_seconds[-1] <= seconds
    for word in words:
        start, end = word["span"]
        assert said.character_start_times_seconds[start] == pytest.approx(word["start"], abs=1e-3)
        assert said.character_end_times_seconds[end - 1] == pytest.approx(word["end"], abs=1e-3)
    streamed = [start for line in lines if line.alignment for start in line.alignment.character_start_times_seconds]
    assert streamed == said.character_start_times_seconds
