"""A real server whose model misses the end of every speech: no answer looks whole."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from voice_clone_client import Client, Incomplete
from websockets.sync.client import connect

from perf.bench.gateway_process import Gateway
from tests.support.servers.server_metrics import metric, wait_until_quiet
from tests.support.waiting import WAIT, until
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.thorough

FAMILY = "qwen3_tts"
BUDGET = 40  # frames
FRAME = 2 * 1920  # bytes of PCM
EMBEDDING = np.random.default_rng(0).normal(size=64).astype(np.float32)
# What the model has said is the likeliest then, so it repeats itself at once. That is a runaway once the text is read.
STUCK = {"repetition_penalty": 0.01}
SHORT, LONG = "Hi", "a long story about boats and lanterns and the quiet harbour " * 4
WAYS = pytest.mark.parametrize(("reason", "text"), [("text_left", LONG), ("runaway", SHORT)])


@pytest.fixture(scope="module")
def server(endless_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server with an endless model, whose texts are granted few frames, and without the encoders."""
    folder = tmp_path_factory.mktemp("missed-ends")
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    for file in endless_checkpoint.iterdir():
        if file.name != "generation_config.json":
            (checkpoint / file.name).symlink_to(file.resolve())
    defaults = json.loads((endless_checkpoint / "generation_config.json").read_text())
    (checkpoint / "generation_config.json").write_text(json.dumps({**defaults, "max_new_tokens": BUDGET}))
    server = TritonServer(
        checkpoint,
        folder / "voices",
        log=folder / "log",
        options=["--model-control-mode=explicit", f"--load-model={FAMILY}"],
        environment={"VOICE_CLONE_RUNAWAY_SECONDS": "0.08"},
    )
    with server:
        yield server
        assert server.ready()
        server.kill()


@pytest.fixture(scope="module")
def gateway(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("missed-ends-gateway")
    with Gateway(server.url, folder / "log", "--model", FAMILY) as gateway:
        yield gateway
        assert "Traceback" not in (folder / "log").read_text()


def fields(text: str, **more: Any) -> dict[str, Any]:
    """A speech over HTTP."""
    return {"input": text, "speaker_embedding": EMBEDDING.tolist(), "response_format": "pcm", **STUCK, **more}


@pytest.fixture(autouse=True)
def all_are_counted(server: TritonServer) -> Iterator[None]:
    """The ends of the speeches of a test, which are counted some time after their last chunks."""
    yield
    wait_until_quiet(server, WAIT)


@WAYS
def test_the_client_reports_it(server: TritonServer, reason: str, text: str) -> None:
    before = metric(server, "talker_streams_total", reason=reason)
    with Client(server.url, model=FAMILY) as client:
        speech = client.speak(text, speaker_embedding=EMBEDDING, **STUCK)
        assert len(speech.read()[0]) and (speech.finish_reason, speech.whole) == (reason, False)
        assert (speech.info or {})["frames"] == BUDGET or reason == "runaway"
        with pytest.raises(Incomplete) as caught:
            client.speak(text, speaker_embedding=EMBEDDING, require_whole=True, **STUCK).read()
        assert caught.value.finish_reason == reason
        wanted = client.speak(text, speaker_embedding=EMBEDDING, max_frames=1, require_whole=True, **STUCK)
        assert len(wanted.read()[0]) == 1920 and wanted.finish_reason == "length"
    until(lambda: metric(server, "talker_streams_total", reason=reason) == before + 2)


def test_the_command_reports_it(server: TritonServer, tmp_path: Path) -> None:
    np.save(tmp_path / "voice.npy", EMBEDDING)
    command = [sys.executable, "-m", "voice_clone_command.cli", "--url", server.url, "--model", FAMILY]
    command += [
        "speak",
        LONG,
        "--top-p",
        "1e-6",
        "--embedding",
        str(tmp_path / "voice.npy"),
        "-o",
        str(tmp_path / "out.wav"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "incomplete: the speech is not whole" in done.stderr
    assert (tmp_path / "out.wav").stat().st_size == 44 + BUDGET * FRAME
    assert subprocess.run([*command, "--max-frames", "1"], timeout=120).returncode == 0


@WAYS
def test_a_raw_stream_breaks_off(gateway: Gateway, reason: str, text: str) -> None:
    got = bytearray()
    url = f"{gateway.url}/v1/audio/speech"
    with (
        httpx2.Client(timeout=60, trust_env=False) as http,
        pytest.raises(httpx2.RemoteProtocolError),
        http.stream("POST", url, json=fields(text)) as answer,
    ):
        assert answer.status_code == 200
        for piece in answer.iter_raw():
            got += piece
    assert got and len(got) % FRAME == 0


@WAYS
def test_the_other_forms_over_http(gateway: Gateway, server: TritonServer, reason: str, text: str) -> None:
    attempts = 3
    before, retried = metric(server, "talker_streams_total", reason=reason), gateway.metric("retried_speeches_total")
    with httpx2.Client(base_url=gateway.url, timeout=60, trust_env=False) as http:
        whole = http.post("/v1/audio/speech", json=fields(text, stream=False))
        assert whole.status_code == 500 and whole.json()["error"]["code"] == "incomplete"
        until(lambda: metric(server, "talker_streams_total", reason=reason) == before + attempts)
        assert gateway.metric("retried_speeches_total") == retried + attempts - 1
        batch = http.post("/v1/audio/speech/batch", json={"items": [fields(text), fields(text, max_frames=1)]}).json()
        bad, good = batch["results"]
        assert (bad["status"], bad["finish_reason"]) == ("error", reason)
        assert (good["status"], good["finish_reason"]) == ("success", "length")
        assert len(base64.b64decode(good["audio_data"])) == FRAME
        events = http.post("/v1/audio/speech", json=fields(text, stream_format="sse")).text.splitlines()
        last = [json.loads(line[6:]) for line in events if line.startswith("data: ")][-1]
        assert last["type"] == "speech.audio.error" and last["error"]["finish_reason"] == reason
        allowed = http.post("/v1/audio/speech", json=fields(text, stream=False, allow_partial=True))
        assert allowed.status_code == 200 and len(allowed.content) >= FRAME
        assert json.loads(allowed.headers["x-speech-info"])["finish_reason"] == reason


@pytest.mark.parametrize("allowed", [False, True])
def test_a_websocket(gateway: Gateway, allowed: bool) -> None:
    config = fields("", type="session.config", allow_partial=allowed)
    del config["input"]
    url = gateway.url.replace("http", "ws") + "/v1/audio/speech/stream"
    said: list[dict[str, Any]] = []
    with connect(url, proxy=None, open_timeout=WAIT) as socket:
        for message in (config, {"type": "input.text", "text": LONG}, {"type": "input.done"}):
            socket.send(json.dumps(message))
        while not said or said[-1]["type"] != "session.done":
            message = socket.recv(60)
            said += [] if isinstance(message, bytes) else [json.loads(message)]
    kinds = [message["type"] for message in said]
    assert kinds == ["audio.start", "audio.done", *([] if allowed else ["error"]), "session.done"]
    assert {message["finish_reason"] for message in said if "finish_reason" in message} == {"text_left"}
    assert ("failed" in said[-1]) != allowed
