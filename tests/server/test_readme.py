"""The calls in README.md and docs/, run as they stand there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile
from voice_clone_client import Client, VoiceNotFound

from perf.bench.gateway_process import Gateway
from tools.triton_server import ROOT, TritonServer

BIN = Path(sys.executable).parent


def block(document: str, language: str, containing: str) -> str:
    """The one code block of a document with this text in it."""
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = [code for kind, code in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL) if kind == language]
    [found] = [code for code in blocks if containing in code]
    return found


def run(command: list[str] | str, cwd: Path) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        shell=isinstance(command, str),
        executable="/bin/bash" if isinstance(command, str) else None,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def here(text: str, server: TritonServer, gateway: Gateway | None = None) -> str:
    """The call with the ports of this server and gateway."""
    text = text.replace("localhost:8000", f"127.0.0.1:{server.http_port}").replace("localhost:8001", server.url)
    return text.replace("localhost:8080", gateway.url.removeprefix("http://")) if gateway else text


@pytest.fixture(scope="module")
def ada(server: TritonServer, reference_clip: bytes, reference_text: str) -> None:
    with Client(server.url) as client:
        client.upload("Ada", reference_clip, reference_text=reference_text, wait=True)


@pytest.fixture(scope="module")
def gateway(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A random checkpoint hardly ever ends a speech, and the calls in the documents have no `max_frames`."""
    with Gateway(server.url, tmp_path_factory.mktemp("gateway") / "log", "--allow-partial", "true") as gateway:
        yield gateway


@pytest.fixture
def folder(tmp_path: Path, reference_clip: bytes) -> Path:
    """Where the calls run, with the clip that they name."""
    (tmp_path / "clip.wav").write_bytes(reference_clip)
    return tmp_path


def test_command_line(server: TritonServer, folder: Path) -> None:
    script = block("README.md", "bash", "voice-clone upload")
    with Client(server.url) as client, contextlib.suppress(VoiceNotFound):
        client.delete("Ada")  # of other tests: a taken name is refused
    listed = run(script.replace("voice-clone ", f"voice-clone --url {server.url} "), folder)
    assert "Ada" in listed
    assert soundfile.info(folder / "hello.wav").samplerate == 24000


@pytest.mark.parametrize("document", ["README.md", "client/README.md"])
def test_python(server: TritonServer, folder: Path, document: str) -> None:
    chunks = run([sys.executable, "-c", here(block(document, "python", "import Client"), server)], folder).splitlines()
    assert [int(line.split()[0]) for line in chunks] == list(range(len(chunks)))
    assert all(line.endswith(" 24000") for line in chunks) and "1920" in chunks[0]


def test_openai_speech(server: TritonServer, gateway: Gateway, ada: None, folder: Path) -> None:
    run(here(block("README.md", "bash", "/v1/audio/speech"), server, gateway), folder)
    assert soundfile.info(folder / "hello.mp3").format == "MP3"


def test_plain_tritonclient(server: TritonServer, ada: None, folder: Path) -> None:
    python, script, *arguments = shlex.split(block("README.md", "bash", "plain_tritonclient.py"))
    assert python == "python"
    run([sys.executable, str(ROOT / script), *arguments, server.url], folder)
    info = soundfile.info(folder / "hello.wav")
    assert info.frames % 1920 == 0 and info.samplerate == 24000


def test_plain_tritonclient_ends_on_an_error(server: TritonServer, folder: Path) -> None:
    """A program that raised but had left its stream open would hang."""
    script = ROOT / "client" / "examples" / "plain_tritonclient.py"
    command = [sys.executable, str(script), "qwen3_tts", "Hi.", "a voice that is not there", "no.wav", server.url]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1 and "speaker_not_found" in found.stderr
    assert not (folder / "no.wav").exists()


def test_register_and_speak_over_http(server: TritonServer, gateway: Gateway, folder: Path) -> None:
    answer = run(here(block("docs/http_api.md", "bash", "audio_sample="), server, gateway), folder)
    assert json.loads(answer)["voice"]["name"] == "Ada"
    assert soundfile.info(folder / "hello.wav").samplerate == 24000


@pytest.mark.parametrize("library", ["openai", "websockets"])
def test_http_from_python(server: TritonServer, gateway: Gateway, ada: None, folder: Path, library: str) -> None:
    program = here(block("docs/http_api.md", "python", f"from {library}"), server, gateway)
    answer = run([sys.executable, "-c", program], folder)
    size = (folder / "hello.pcm").stat().st_size
    assert size > 0 and size % 2 == 0
    assert library == "openai" or json.loads(answer)["type"] == "session.done"


def test_curl(server: TritonServer) -> None:
    answer = run(here(block("docs/triton_api.md", "bash", "generate_stream"), server), ROOT)
    first, *events = answer.split("data: ")
    assert json.loads(json.loads(first)["result"])["name"] == "Ada"
    chunks = [json.loads(event) for event in events]
    assert [chunk["chunk_index"] for chunk in chunks] == list(range(len(chunks)))
    assert chunks[-1]["final"] is True
    samples = sum(len(chunk["audio"]) for chunk in chunks if isinstance(chunk.get("audio"), list))
    assert samples == json.loads(chunks[-1]["info"])["frames"] * 1920


def test_perf_analyzer(server: TritonServer, ada: None) -> None:
    command = here(block("docs/operations.md", "bash", "perf/perf_analyzer"), server)
    report = run(command.replace("--request-count 20", "--request-count 4"), ROOT)
    assert "Request concurrency: 2" in report
    for model in ("qwen3_tts_prompt", "qwen3_tts_talker", "qwen3_tts_code2wav"):
        assert f"{model}, version: 1" in report
