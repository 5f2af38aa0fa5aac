"""Apps that were made for other servers, unmodified: LiveKit's and Pipecat's plugins, and Open WebUI's calls."""

from __future__ import annotations

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

from perf.bench.gateway_process import Gateway
from tests.support.servers.server_metrics import metric
from tests.support.waiting import until
from tools.triton_server import TritonServer

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
        command = [str(PYTHON), str(script), f"{gateway.url}/v1", TEXT]
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


def test_livekit_gets_the_error(livekit: App) -> None:
    answer = livekit.speak(voice="Nobody")
    assert answer["status"] == 404 and "Nobody" in answer["message"]


@pytest.mark.parametrize(
    "options", [{}, {"voice": "nova", "instructions": "Speak kindly.", "speed": 1.25}], ids=["defaults", "all"]
)
def test_pipecat(pipecat: App, options: dict[str, Any]) -> None:
    answer = pipecat.speak(**options)
    assert answer["rate"] == 24000 and answer["seconds"] > 0.5


def test_pipecat_gets_the_error(pipecat: App) -> None:
    assert "there is no model 'tts-9'" in pipecat.speak(model="tts-9")["error"]


@pytest.mark.parametrize(
    ("app", "vendor", "options"),
    [
        ("livekit", "deepgram", ["{}"]),
        pytest.param("livekit", "elevenlabs", ['{"auto_mode": false}'], marks=pytest.mark.long),  # word by word
        pytest.param("livekit", "elevenlabs", ['{"encoding": "pcm_24000"}'], marks=pytest.mark.long),  # its default
        pytest.param("pipecat", "deepgram", [], marks=pytest.mark.long),
        ("pipecat", "elevenlabs", []),
    ],
    ids=[
        "livekit-deepgram",
        "livekit-elevenlabs",
        "livekit-elevenlabs-sentences",
        "pipecat-deepgram",
        "pipecat-11labs",
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
