"""The README's calls, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
from voice_clone_client import Client

from tools.triton_server import ROOT, TritonServer

README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, containing: str) -> str:
    """The one code block of the README with this text in it."""
    blocks = [text for kind, text in re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL) if kind == language]
    [found] = [text for text in blocks if containing in text]
    return found


def run(command: list[str] | str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        shell=isinstance(command, str),
        executable="/bin/bash" if isinstance(command, str) else None,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def here(text: str, server: TritonServer) -> str:
    """The command with this server's ports."""
    return text.replace("localhost:8000", f"127.0.0.1:{server.http_port}").replace("localhost:8001", server.url)


@pytest.fixture(scope="module")
def ada(server: TritonServer, reference_clip: bytes, reference_text: str) -> None:
    with Client(server.url) as client:
        client.upload("Ada", reference_clip, reference_text=reference_text, wait=True)


def test_plain_tritonclient(server: TritonServer, ada: None, tmp_path: Path) -> None:
    source = block("python", "tritonclient.grpc")
    assert source == (ROOT / "client" / "examples" / "plain_tritonclient.py").read_text(encoding="utf-8")
    script = tmp_path / "plain.py"
    script.write_text(here(source, server), encoding="utf-8")
    wav = tmp_path / "hello.wav"
    run([sys.executable, str(script), "qwen3_tts", "Good morning.", "Ada", str(wav)], tmp_path)
    assert soundfile.info(wav).frames % 1920 == 0 and soundfile.info(wav).samplerate == 24000


def test_curl(server: TritonServer) -> None:
    answer = run(here(block("bash", "generate_stream"), server), ROOT)
    first, *events = answer.split("data: ")
    assert json.loads(json.loads(first)["result"])["name"] == "Ada"
    chunks = [json.loads(event) for event in events]
    assert [chunk["chunk_index"] for chunk in chunks] == list(range(len(chunks)))
    assert chunks[-1]["final"] is True
    samples = sum(len(chunk["audio"]) for chunk in chunks if isinstance(chunk.get("audio"), list))
    assert samples == json.loads(chunks[-1]["info"])["frames"] * 1920


def test_perf_analyzer(server: TritonServer, ada: None) -> None:
    report = run(here(block("bash", "perf/perf_analyzer"), server), ROOT)
    assert "Request concurrency: 2" in report
    for model in ("qwen3_tts_prompt", "qwen3_tts_talker", "qwen3_tts_code2wav"):
        assert f"{model}, version: 1" in report


def test_command_line(server: TritonServer, tmp_path: Path, reference_clip: bytes) -> None:
    (tmp_path / "clip.wav").write_bytes(reference_clip)
    bin_folder = Path(sys.executable).parent
    script = block("bash", "voice-clone upload").replace("voice-clone ", f"voice-clone --url {server.url} ")
    listed = run(script, tmp_path, PATH=f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    assert "Ada" in listed
    assert soundfile.info(tmp_path / "hello.wav").samplerate == 24000
