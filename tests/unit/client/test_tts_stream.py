"""tools/tts-stream: what it sends, saves, plays and says, against an HTTP server that plays a script."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
import wave
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from voice_clone_client import __version__

from tests.support.waiting import WAIT, until

TOOL = Path(__file__).parents[3] / "tools" / "tts-stream"
CHUNKS = [bytes([index]) * 3840 for index in range(1, 4)]


class Gateway(ThreadingHTTPServer):
    """Answers each speech with `status` and `chunks`, chunked; remembers the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.status = 200
        self.content_type = ("Content-Type", "audio/pcm")  # as OpenAI's
        self.chunks: Callable[[], Iterator[bytes]] = lambda: iter(CHUNKS)
        self.breaks_off = False
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def do_POST(self) -> None:
        assert self.path == "/v1/audio/speech"
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.keys.append(self.headers["Authorization"])
        self.send_response(self.server.status)
        self.send_header(*self.server.content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for chunk in self.server.chunks():
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            if not self.server.breaks_off:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the tool went away
            pass
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def start(gateway: Gateway, *arguments: object, **environment: str) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return subprocess.Popen(
        [TOOL, "--url", gateway.url, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**kept, **environment},
        start_new_session=True,
    )


def run(gateway: Gateway, *arguments: object, **environment: str) -> tuple[int | None, str]:
    """Exit code and stderr; nothing ever comes on stdout."""
    process = start(gateway, *arguments, **environment)
    out, err = process.communicate(timeout=WAIT)
    assert out == b""
    return process.returncode, err.decode()


def pcm_of(path: Path, rate: int = 24000) -> bytes:
    """The PCM of a WAV whose sizes are exactly right."""
    with wave.open(str(path)) as wav:
        assert (wav.getframerate(), wav.getnchannels(), wav.getsampwidth()) == (rate, 1, 2)
        assert path.stat().st_size == 44 + 2 * wav.getnframes()
        return bytes(wav.readframes(wav.getnframes()))


def test_saves_a_valid_wav(gateway: Gateway, tmp_path: Path) -> None:
    assert run(gateway, "--voice", "ada", "-o", tmp_path / "out.wav", "Hi.") == (0, "")
    assert pcm_of(tmp_path / "out.wav") == b"".join(CHUNKS)
    assert gateway.bodies == [{"input": "Hi.", "voice": "ada", "stream_format": "audio", "response_format": "pcm"}]
    assert gateway.keys == [None]


@pytest.mark.parametrize("name", ["Content-Type", "content-type"])
def test_the_rate_is_the_streams(gateway: Gateway, tmp_path: Path, name: str) -> None:
    gateway.content_type = (name, "audio/pcm; rate=44100")
    assert run(gateway, "--voice", "ada", "-o", tmp_path / "out.wav", "Hi.") == (0, "")
    assert pcm_of(tmp_path / "out.wav", 44100) == b"".join(CHUNKS)
    player = tmp_path / "bin" / "paplay"
    player.parent.mkdir()
    player.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/options; exec cat > /dev/null\n')
    player.chmod(0o755)
    for content_type, rate in (("audio/pcm;rate=48000", 48000), ("audio/pcm;rate=$(date)", 24000)):
        gateway.content_type = (name, content_type)
        path = f"{player.parent}:{os.environ['PATH']}"
        assert run(gateway, "--voice", "ada", "Hi.", PATH=path) == (0, "")
        assert f"--rate={rate}" in (tmp_path / "options").read_text()


def test_other_formats_are_saved_as_they_come(gateway: Gateway, tmp_path: Path) -> None:
    assert run(gateway, "--voice", "ada", "--save", tmp_path / "out.mp3", "Hi.") == (0, "")
    assert (tmp_path / "out.mp3").read_bytes() == b"".join(CHUNKS)
    assert gateway.bodies[0]["response_format"] == "mp3" and "sample_rate" not in gateway.bodies[0]


def test_any_text_and_all_options(gateway: Gateway, tmp_path: Path) -> None:
    text = 'She said: "C:\\new",\n\ttwice \x01 — 世界 $(true) `x` \\u0041'
    clip = tmp_path / "a.wav"
    clip.write_bytes(b"clip")
    options = ["--reference", clip, "--reference-text", 'a "b"', "--language", "German", "--set", "seed=7"]
    code, _ = run(gateway, *options, "--set", 'response_format="pcm"', "-o", tmp_path / "out.pcm", text)
    assert code == 0
    body = gateway.bodies[0]
    assert (body["input"], body["reference_text"], body["language"], body["seed"]) == (text, 'a "b"', "German", 7)
    assert body["reference_audio"] == "data:audio/wav;base64,Y2xpcA=="


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "VOICE_CLONE_API_KEY"])
def test_keys(gateway: Gateway, tmp_path: Path, name: str) -> None:
    run(gateway, "--voice", "ada", "-o", tmp_path / "out.wav", "Hi.", **{name: 'k"1'})
    assert gateway.keys == ['Bearer k"1']


def test_url_of_an_openai_client(gateway: Gateway, tmp_path: Path) -> None:
    process = subprocess.run(
        [TOOL, "--voice", "ada", "-o", tmp_path / "out.wav", "Hi."],
        env={**os.environ, "OPENAI_BASE_URL": f"{gateway.url}/v1/"},
        timeout=WAIT,
    )
    assert process.returncode == 0


def test_plays_while_it_comes(gateway: Gateway, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "paplay").write_text(f'#!/bin/sh\necho "$*" > {heard}.options; exec cat > {heard}\n')
    (folder / "paplay").chmod(0o755)

    def chunks() -> Iterator[bytes]:
        yield CHUNKS[0]
        until(lambda: heard.exists() and heard.stat().st_size)
        yield CHUNKS[1]

    gateway.chunks = chunks
    assert run(gateway, "--voice", "ada", "Hi.", PATH=f"{folder}:{os.environ['PATH']}") == (0, "")
    assert heard.read_bytes() == CHUNKS[0] + CHUNKS[1]
    assert "--rate=24000" in heard.with_suffix(".options").read_text()


def test_no_player(gateway: Gateway, tmp_path: Path) -> None:
    for name in ("bash", "curl", "cat"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    code, err = run(gateway, "--voice", "ada", "Hi.", PATH=str(tmp_path))
    assert code == 1 and "no audio player found" in err and not gateway.bodies


def test_the_servers_message_is_one_line(gateway: Gateway, tmp_path: Path) -> None:
    gateway.status = 404
    error = {"message": 'no voice is registered under the name "ada"', "type": "invalid_request_error"}
    gateway.chunks = lambda: iter([json.dumps({"error": error}, indent=1).encode()])
    (tmp_path / "out.wav").write_bytes(b"before")
    stderr = 'tts-stream: no voice is registered under the name "ada" (HTTP 404)\n'
    assert run(gateway, "--voice", "ada", "-o", tmp_path / "out.wav", "Hi.") == (1, stderr)
    assert (tmp_path / "out.wav").read_bytes() == b"before"


def test_no_server(gateway: Gateway, tmp_path: Path) -> None:
    gateway.url = "http://127.0.0.1:1"
    code, err = run(gateway, "--voice", "ada", "-o", tmp_path / "out.wav", "Hi.")
    assert code == 1 and err.startswith("tts-stream: Failed to connect") and err.count("\n") == 1
    assert not (tmp_path / "out.wav").exists()


def test_a_speech_that_breaks_off_leaves_a_valid_file(gateway: Gateway, tmp_path: Path) -> None:
    gateway.breaks_off = True
    code, err = run(gateway, "--voice", "ada", "-o", tmp_path / "out.wav", "Hi.")
    assert code == 1 and err.startswith("tts-stream: the speech broke off: ") and err.count("\n") == 1
    assert pcm_of(tmp_path / "out.wav") == b"".join(CHUNKS)


@pytest.mark.parametrize("name", ["out.wav", "out.mp3"])
def test_an_older_file_stays_until_the_new_one_is_whole(gateway: Gateway, tmp_path: Path, name: str) -> None:
    """Through a link, too, and with its mode. Nothing else is left in the folder."""
    older, link = tmp_path / name, tmp_path / f"link-{name}"
    older.write_bytes(b"older")
    older.chmod(0o640)
    link.symlink_to(name)
    seen: list[bytes] = []

    def chunks() -> Iterator[bytes]:
        for chunk in CHUNKS:
            yield chunk
            seen.append(older.read_bytes())

    gateway.chunks, gateway.breaks_off = chunks, True
    assert run(gateway, "--voice", "ada", "-o", link, "Hi.")[0] == 1
    assert older.read_bytes() == b"older"
    gateway.breaks_off = False
    assert run(gateway, "--voice", "ada", "-o", link, "Hi.") == (0, "")
    assert set(seen) == {b"older"}
    assert (pcm_of(older) if name.endswith("wav") else older.read_bytes()) == b"".join(CHUNKS)
    assert link.is_symlink() and older.stat().st_mode & 0o777 == 0o640
    assert {path.name for path in tmp_path.iterdir()} == {name, link.name}


@pytest.mark.parametrize("name", ["out.wav", "out.pcm"])
def test_a_pipe_gets_the_audio(gateway: Gateway, tmp_path: Path, name: str) -> None:
    pipe, read = tmp_path / name, []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    assert run(gateway, "--voice", "ada", "-o", pipe, "Hi.") == (0, "")
    reader.join(WAIT)
    assert read[0][44 if name.endswith("wav") else 0 :] == b"".join(CHUNKS)
    assert pipe.is_fifo()


def test_ctrl_c_leaves_a_valid_file(gateway: Gateway, tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        while True:
            yield CHUNKS[0]
            time.sleep(0.01)

    gateway.chunks = chunks
    out = tmp_path / "out.wav"
    process = start(gateway, "--voice", "ada", "-o", out, "Hi.")
    until(lambda: process.poll() is not None or any(part.stat().st_size > 20000 for part in tmp_path.iterdir()))
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=WAIT) == (b"", b"")
    assert process.returncode == 130
    assert set(pcm_of(out)) == {1} and [*tmp_path.iterdir()] == [out]


@pytest.mark.parametrize(
    "arguments",
    [[], ["Hi."], ["--voice", "ada"], ["--voice"], ["--loud", "Hi."], ["--voice", "a", "-o", "out.doc", "Hi."]],
)
def test_wrong_usage(gateway: Gateway, arguments: list[str]) -> None:
    code, err = run(gateway, *arguments)
    assert code == 2 and err.count("\n") == 1 and ("usage: tts-stream" in err or "must end with" in err)


def test_it_has_the_version_of_the_client() -> None:
    done = subprocess.run([TOOL, "--version"], capture_output=True, text=True, timeout=WAIT)
    assert (done.returncode, done.stdout) == (0, f"voice-clone {__version__}\n")
