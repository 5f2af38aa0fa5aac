"""Apps that were made for other servers: LiveKit's and Pipecat's plugins, unmodified, and the calls of others."""

from __future__ import annotations

import base64
import io
import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
import soundfile
from voice_clone_client import Client
from websockets.sync.client import connect

from perf.bench.gateway_process import Gateway
from tests.support.servers.server_metrics import metric
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv" / "apps" / "bin" / "python"  # made by tools/test
TEXT = "Good morning."


@pytest.fixture(scope="module")
def gateway(server: TritonServer, voice: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a default voice, an alias, and the list of voices that Open WebUI reads.

    A random checkpoint hardly ever ends a speech, and these apps cannot send `max_frames`.
    """
    folder = tmp_path_factory.mktemp("apps")
    options = (
        "--default-voice",
        voice,
        "--voice-list",
        "objects",
        "--allow-partial",
        "true",
    )
    with Gateway(server.url, folder / "log", *options) as gateway, Client(server.url) as client:
        client.set_alias("nova", voice)
        yield gateway
        client.remove_alias("nova")
        assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture(scope="module")
def agent(server: TritonServer, reference_clip: bytes) -> str:
    """A voice without a transcript: in context, the first audio would wait for more words than the text has."""
    with Client(server.url) as client:
        client.upload("Agent", reference_clip, wait=True)
    return "Agent"


class App:
    """A script of tests/support/official/apps that speaks once for each line: its imports cost more than a speech."""

    def __init__(self, name: str, gateway: Gateway) -> None:
        script = ROOT / "tests" / "support" / "official" / "apps" / f"{name}_speech.py"
        command = [str(PYTHON), str(script), gateway.url, TEXT]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def speak(self, **options: Any) -> dict[str, Any]:
        """What it prints."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"it ended with status {self._process.wait()}"
        return dict(json.loads(answer))

    def close(self) -> None:
        """Let it end."""
        with self._process as process:
            process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.fixture(scope="module")
def livekit(gateway: Gateway) -> Iterator[App]:
    with closing(App("livekit", gateway)) as app:
        yield app


@pytest.fixture(scope="module")
def pipecat(gateway: Gateway) -> Iterator[App]:
    with closing(App("pipecat", gateway)) as app:
        yield app


@pytest.mark.parametrize(
    "options",
    [
        {},  # gpt-4o-mini-tts, the voice ash, MP3 in events
        {"model": "tts-1", "voice": "nova"},  # MP3 in a raw stream
        {"instructions": "Speak kindly.", "speed": 1.25, "response_format": "opus"},
        {"response_format": "pcm"},
    ],
    ids=["defaults", "raw", "opus", "pcm"],
)
def test_livekit(livekit: App, options: dict[str, Any]) -> None:
    answer = livekit.speak(**options)
    assert answer["rate"] == 24000 and answer["seconds"] > 0.5


@pytest.mark.parametrize("vendor", ["elevenlabs", "dialogue", "deepgram", "deepgram-v2", "cartesia"])
def test_livekit_speaks_as_a_vendor(livekit: App, voice: str, vendor: str) -> None:
    answer = livekit.speak(vendor=vendor, voice=voice)
    assert answer["rate"] == (22050 if vendor in ("elevenlabs", "dialogue") else 24000) and answer["seconds"] > 0.5


def test_livekit_gets_the_error(livekit: App) -> None:
    answer = livekit.speak(voice="Nobody")
    assert answer["status"] == 404 and "Nobody" in answer["message"]


@pytest.mark.parametrize(
    "options", [{}, {"voice": "nova", "instructions": "Speak kindly.", "speed": 1.25}], ids=["defaults", "all"]
)
def test_pipecat(pipecat: App, options: dict[str, Any]) -> None:
    answer = pipecat.speak(**options)
    assert answer["rate"] == 24000 and answer["seconds"] > 0.5


@pytest.mark.parametrize("vendor", ["elevenlabs", "deepgram", "cartesia"])
def test_pipecat_speaks_as_a_vendor(pipecat: App, voice: str, vendor: str) -> None:
    answer = pipecat.speak(vendor=vendor, voice=voice)
    assert answer["rate"] == 24000 and answer["seconds"] > 0.5


def test_pipecat_gets_the_error(pipecat: App) -> None:
    assert "there is no model 'tts-9'" in pipecat.speak(model="tts-9")["error"]


@pytest.mark.parametrize(
    ("app", "vendor", "options"),
    [
        ("livekit", "deepgram", ["{}"]),
        pytest.param("livekit", "deepgram-v2", ["{}"], marks=pytest.mark.long),
        pytest.param("livekit", "elevenlabs", ['{"auto_mode": false}'], marks=pytest.mark.long),  # word by word
        pytest.param("livekit", "elevenlabs", ['{"encoding": "pcm_24000"}'], marks=pytest.mark.long),  # its default
        ("livekit", "dialogue", ["{}"]),
        pytest.param("livekit", "cartesia", ["{}"], marks=pytest.mark.long),
        pytest.param("pipecat", "deepgram", [], marks=pytest.mark.long),
        ("pipecat", "deepgram-v2", []),
        ("pipecat", "elevenlabs", []),
        pytest.param("pipecat", "dialogue", [], marks=pytest.mark.long),
        ("pipecat", "cartesia", []),
    ],
)
def test_text_that_is_still_being_written(
    gateway: Gateway, server: TritonServer, agent: str, app: str, vendor: str, options: list[str]
) -> None:
    """Spoken to its end; left while it is spoken, which frees the talker's slot; and spoken once more."""
    script = ROOT / "tests" / "support" / "official" / "apps" / f"{app}_stream.py"
    command = [str(PYTHON), str(script), vendor, gateway.url, agent, TEXT, *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        first, interrupted = (json.loads(process.stdout.readline()) for _ in range(2))
        assert first["seconds"] > 0.3 and interrupted == {"interrupted": True}
        until(lambda: metric(server, "talker_live_streams") == 0)
        again, rest = process.communicate("\n", timeout=120)[0].splitlines()[0], process.wait()
    assert json.loads(again)["seconds"] > 0.3 and rest == 0


def test_open_webui(gateway: Gateway, voice: str) -> None:
    """The calls of Open WebUI 0.12.4 with its engine `openai` and the base URL of this gateway."""
    with httpx2.Client(base_url=f"{gateway.url}/v1", timeout=60, trust_env=False) as http:
        assert http.get("/audio/models").status_code == 404, "then it asks the next path"
        models = http.get("/models").json()["data"]
        assert {"tts-1", "tts-1-hd"} <= {model["id"] for model in models}
        voices = {each["id"]: each["name"] for each in http.get("/audio/voices").json()["voices"]}
        assert voices[voice] == voice
        for name in ("alloy", voice):  # its own default, and one of the list
            payload = {"input": TEXT, "model": "tts-1", "voice": name}
            answer = http.post("/audio/speech", json=payload, headers={"Authorization": "Bearer unused"})
            assert answer.status_code == 200 and answer.headers["content-type"] == "audio/mpeg"
            samples, rate = soundfile.read(io.BytesIO(answer.content))
            assert rate == 24000 and len(samples) > rate / 2


def test_open_webui_with_elevenlabs(gateway: Gateway, voice: str) -> None:
    """The calls of Open WebUI 0.12.4 with its engine `elevenlabs` and ELEVENLABS_API_BASE_URL."""
    headers = {"xi-api-key": "unused", "Content-Type": "application/json"}
    with httpx2.Client(base_url=gateway.url, timeout=60, trust_env=False, headers=headers) as http:
        assert all(model["model_id"] and model["name"] for model in http.get("/v1/models").json())
        voices = {each["voice_id"]: each["name"] for each in http.get("/v1/voices").json()["voices"]}
        [chosen] = [id for id, name in voices.items() if name == voice]
        settings = {"stability": 0.5, "similarity_boost": 0.5}
        body = {"text": TEXT, "model_id": "eleven_multilingual_v2", "voice_settings": settings}
        answer = http.post(f"/v1/text-to-speech/{chosen}", json=body)
        samples, rate = soundfile.read(io.BytesIO(answer.content))
        assert answer.status_code == 200 and len(samples) > rate / 2


def test_open_webui_with_realtime(gateway: Gateway) -> None:
    """The messages of Open WebUI 0.12.4 with its engine for Realtime."""
    url = gateway.url.replace("http", "ws", 1) + "/v1/realtime?model=gpt-realtime"
    with connect(url, proxy=None, additional_headers={"Authorization": "Bearer unused"}) as connection:

        def until(kind: str) -> list[dict[str, Any]]:
            events = [json.loads(connection.recv(60))]
            while events[-1]["type"] != kind:
                assert events[-1]["type"] != "error", events[-1]
                events.append(json.loads(connection.recv(60)))
            return events

        until("session.created")
        output = {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "alloy"}
        session = {"type": "realtime", "output_modalities": ["audio"], "audio": {"output": output}}
        connection.send(json.dumps({"type": "session.update", "session": session}))
        until("session.updated")
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]}
        connection.send(json.dumps({"type": "response.create", "response": {"conversation": "none", "input": [item]}}))
        *events, done = until("response.done")
        deltas = [each["delta"] for each in events if each["type"] == "response.output_audio.delta"]
        assert len(b"".join(map(base64.b64decode, deltas))) > 24000 and done["response"]["status"] == "completed"


def test_n8n_and_librechat(lenient_gateway: Gateway, reference_clip: bytes) -> None:
    """The calls of n8n's node for ElevenLabs, and LibreChat's, whose `url` is the whole one."""
    with httpx2.Client(base_url=lenient_gateway.url, timeout=60, trust_env=False, headers={"xi-api-key": "a"}) as http:
        added = http.post("/v1/voices/add", data={"name": "Nia"}, files={"files": ("a.wav", reference_clip)}).json()
        assert added["voice_id"] in {each["voice_id"] for each in http.get("/v2/voices").json()["voices"]}
        assert [model for model in http.get("/v1/models").json() if model["can_do_text_to_speech"]]
        settings = {"similarity_boost": 0.5, "stability": 0.5, "style": 0.1, "use_speaker_boost": True}
        body = {
            "text": TEXT,
            "model_id": "eleven_v3",
            "voice_settings": settings,
            "pronunciation_dictionary_locators": [],
        }
        for path in (
            f"/v1/text-to-speech/{added['voice_id']}",
            "/v1/text-to-speech/Nia/stream?output_format=mp3_44100_64",
        ):
            answer = http.post(path, json=body)
            assert answer.status_code == 200 and answer.headers["content-type"] == "audio/mpeg"
        assert http.delete("/v1/voices/Nia").json() == {"status": "ok"}
