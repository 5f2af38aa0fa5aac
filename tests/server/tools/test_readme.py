"""The commands and calls in README.md and docs/, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import soundfile
from voice_clone_client import Client, VoiceNotFound

from perf.bench.gateway_process import Gateway
from tests.support.waiting import until
from voice_clone_server.triton_server import ROOT, TritonServer, free_ports

pytestmark = pytest.mark.share("servers")

BIN = Path(sys.executable).parent


def blocks(document: str) -> list[tuple[str, str]]:
    """(language, code) of every code block of a document that has a language."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)


def block(document: str, language: str, containing: str) -> str:
    """The one code block of a document with this text in it."""
    [found] = [code for kind, code in blocks(document) if kind == language and containing in code]
    return found


def run(command: list[str] | str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        shell=isinstance(command, str),
        executable="/bin/bash" if isinstance(command, str) else None,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **environment},
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


@pytest.fixture
def ada(server: TritonServer, reference_clip: bytes, reference_text: str) -> None:
    with Client(server.url) as client:
        client.upload("Ada", reference_clip, reference_text=reference_text, wait=True, replace=True)


@pytest.fixture
def cleo(server: TritonServer, reference_clip: bytes) -> None:
    with Client(server.url) as client:
        client.upload("Cleo", reference_clip, wait=True, replace=True)


@pytest.fixture
def no_voices(server: TritonServer) -> None:
    """The calls in each document begin with an upload, and the voices differ."""
    with Client(server.url) as client:
        for name in ("Ada", "Cleo"):
            with suppress(VoiceNotFound):
                client.delete(name)


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


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder in which README's paths are those of this checkout, but what the calls write is not in it."""
    for name in ("client", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[dict[str, str]]:
    """README's command that serves, on ports of its own and with an empty folder of voices, until it is ready."""
    demo, serve = block("README.md", "bash", "tools/serve --checkpoint tools/data/demo_voice").splitlines()
    assert demo.split()[0] == "tools/demo", "tests/server/tools/test_demo.py runs it"
    ports = dict(zip(("8001", "8000", "8002", "8080"), map(str, free_ports(4)), strict=True))
    command = [*shlex.split(serve.replace("8080", ports["8080"]), comments=True), "--voices", str(tmp_path / "voices")]
    kinds = zip(("--grpc-port", "--http-port", "--metrics-port"), ports.values(), strict=False)
    command += [word for pair in kinds for word in pair]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or "\nReady" in (tmp_path / "log").read_text(), 600)
        assert process.poll() is None, (tmp_path / "log").read_text()
        yield ports
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


@pytest.mark.thorough  # some minutes; test_demo.py has its first command
def test_readme_can_be_pasted_in_its_order(ports: dict[str, str], checkout: Path) -> None:
    """With the checkpoint and the clips of this repository, after the server's command."""
    written: dict[str, float] = {}
    for language, code in blocks("README.md"):
        if "tools/serve" in code:  # the server runs; a released checkpoint cannot be downloaded here
            continue
        for port in ports:
            code = code.replace(f"localhost:{port}", f"127.0.0.1:{ports[port]}")
        url = f"127.0.0.1:{ports['8001']}"
        code = code.replace(" plain.wav", f" plain.wav {url}")
        command = code if language == "bash" else [sys.executable, "-c", code]
        printed = run(command, checkout, VOICE_CLONE_SERVER=url)
        if "import Client" in code:
            chunks = printed.splitlines()
            assert [int(line.split()[0]) for line in chunks] == list(range(len(chunks)))
            assert all(line.endswith(" 24000") for line in chunks) and "1920" in chunks[0]
        for name in re.findall(r"\w+\.(?:wav|mp3)\b", code):
            if (checkout / name).exists():
                written.setdefault(name, soundfile.info(checkout / name).duration)
    assert set(written) == {"hello.wav", "hello.mp3", "openai.wav", "plain.wav"}
    assert all(1 < seconds < 8 for seconds in written.values()), "a short sentence"
    assert soundfile.info(checkout / "hello.mp3").format == "MP3"


def test_python(server: TritonServer, no_voices: None, folder: Path) -> None:
    code = here(block("client/README.md", "python", "client.upload"), server)
    for _ in range(2):  # it can be run again
        chunks = run([sys.executable, "-c", code], folder, VOICE_CLONE_SERVER=server.url).splitlines()
    assert [int(line.split()[0]) for line in chunks] == list(range(len(chunks)))
    assert all(line.endswith(" 24000") for line in chunks) and "1920" in chunks[0]


def test_plain_tritonclient_ends_on_an_error(server: TritonServer, folder: Path) -> None:
    """A program that raised but had left its stream open would hang."""
    script = ROOT / "client" / "examples" / "plain_tritonclient.py"
    command = [sys.executable, str(script), "qwen3_tts", "Hi.", "a voice that is not there", "no.wav", server.url]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert found.returncode == 1 and "speaker_not_found" in found.stderr
    assert not (folder / "no.wav").exists()


def test_register_and_speak_over_http(server: TritonServer, gateway: Gateway, no_voices: None, checkout: Path) -> None:
    for _ in range(2):
        answer = run(here(block("docs/http_api.md", "bash", "name=Cleo"), server, gateway), checkout)
    assert json.loads(answer).get("voice", {}).get("name") == "Cleo", answer
    head = (checkout / "hello.wav").read_bytes()
    assert int.from_bytes(head[4:8], "little") == len(head) - 8, "a whole file"


def test_appended_text(server: TritonServer, ada: None, folder: Path) -> None:
    code = block("docs/appended_text.md", "python", "import Client")
    lines = run([sys.executable, "-c", code], folder, VOICE_CLONE_SERVER=server.url).splitlines()
    read = [int(line.split()[-1]) for line in lines]  # of any seed: a sentence may be begun again, in another part
    assert 0 < read[-1] <= len("The old captain sold his boat. Please close the door.")


@pytest.mark.parametrize("library", ["openai", "websockets"])
def test_http_from_python(server: TritonServer, gateway: Gateway, cleo: None, folder: Path, library: str) -> None:
    program = here(block("docs/http_api.md", "python", f"from {library}"), server, gateway)
    answer = run([sys.executable, "-c", program], folder)
    size = (folder / "hello.pcm").stat().st_size
    assert size > 0 and size % 2 == 0
    assert library == "openai" or json.loads(answer)["type"] == "session.done"


@pytest.mark.parametrize(
    ("library", "file"),
    [
        ("openai", "openai.wav"),
        ("elevenlabs.client", "elevenlabs.mp3"),
        ("deepgram", "deepgram.mp3"),
        ("cartesia", "cartesia.wav"),
        ("urllib.request", "azure.mp3"),
    ],
)
def test_migration(server: TritonServer, no_voices: None, ada: None, checkout: Path, library: str, file: str) -> None:
    options = ("--vendors-consent", "in a letter", "--allow-partial", "true")  # random weights miss their ends
    with Gateway(server.url, checkout / "log", *options) as gateway:
        program = here(block("docs/migrate.md", "python", f"from {library}"), server, gateway)
        for _ in range(2):
            run([sys.executable, "-c", program], checkout)
    assert soundfile.info(checkout / file).duration > 0.1


def test_curl(server: TritonServer, no_voices: None) -> None:
    answer = run(here(block("docs/triton_api.md", "bash", "generate_stream"), server), ROOT)
    first, *events = answer.split("data: ")
    assert json.loads(json.loads(first)["result"])["name"] == "Ada"
    chunks = [json.loads(event) for event in events]
    assert [chunk["chunk_index"] for chunk in chunks] == list(range(len(chunks)))
    assert chunks[-1]["final"] is True
    samples = sum(len(chunk["audio"]) for chunk in chunks if isinstance(chunk.get("audio"), list))
    assert samples == json.loads(chunks[-1]["info"])["frames"] * 1920


@pytest.mark.thorough
def test_perf_analyzer(server: TritonServer, ada: None) -> None:
    command = here(block("docs/operations.md", "bash", "perf/perf_analyzer"), server)
    report = run(command.replace("--request-count 20", "--request-count 4"), ROOT)
    assert "Request concurrency: 2" in report
    for model in ("qwen3_tts_prompt", "qwen3_tts_talker", "qwen3_tts_code2wav"):
        assert f"{model}, version: 1" in report
