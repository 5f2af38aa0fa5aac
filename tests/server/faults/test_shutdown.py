"""SIGTERM while streams run: each ends, whole or with an error; new ones are refused; the server leaves nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from voice_clone_client import Client, Overloaded

from tests.support.doubles.fakes import clip
from tests.support.servers.cache_calls import Cache
from tests.support.servers.endless import SPEECH_ALONE, endless
from tests.support.servers.family_models import make_repository
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.thorough

FRAME = 1920  # samples
EXIT_TIMEOUT = 30  # seconds; streams get half of them, the ends of the models' processes the rest
WHOLE, ENDLESS = 30, 12_000  # frames: made in a second or so; more than any machine makes in those seconds
TEXT = "A long story. " * 146  # 1,022 tokens, which are granted 12,264 frames
EMBEDDING = np.random.default_rng(0).normal(size=64).astype(np.float32)

# Looks for what voices lack all the time, not twice a minute.
EAGER = """
from functools import partial

from voice_clone.triton.stages import speaker_cache

speaker_cache.CacheConfig = partial(speaker_cache.CacheConfig, finish_seconds=0.02)
"""

Outcome = tuple[int, dict[str, Any]]  # samples, info of the last chunk


@pytest.fixture
def server(endless_checkpoint: Path, tmp_path: Path) -> Iterator[TritonServer]:
    """Without the encoders: fewer processes that must end in time on a slow machine."""
    server = TritonServer(
        endless_checkpoint,
        tmp_path / "voices",
        log=tmp_path / "log",
        environment={"VOICE_CLONE_MAX_LENGTH": str(ENDLESS + 1_000), "VOICE_CLONE_RUNAWAY_SECONDS": "100000"},
        options=["--model-control-mode=explicit", "--load-model=qwen3_tts", f"--exit-timeout-secs={EXIT_TIMEOUT}"],
    )
    yield server.start()
    server.stop()


def speak(client: Client, frames: int, seed: int, begun: threading.Semaphore) -> Outcome:
    """A stream through gRPC, up to its last chunk."""
    speech = client.speak(TEXT, speaker_embedding=EMBEDDING, max_frames=frames, seed=seed)
    samples = len(next(speech).samples)
    begun.release()
    samples += sum(len(chunk.samples) for chunk in speech)
    return samples, dict(speech.info or {})


def speak_http(server: TritonServer, frames: int, seed: int, begun: threading.Semaphore) -> Outcome:
    """The same as server-sent events."""
    asked = {"text": TEXT, "speaker_embedding": EMBEDDING.tolist(), "max_frames": frames, "seed": seed}
    request = urllib.request.Request(
        f"{server.http}/v2/models/qwen3_tts/generate_stream", json.dumps(asked).encode(), method="POST"
    )
    samples, last = 0, dict[str, Any]()
    with urllib.request.urlopen(request, timeout=60.0) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                if not last:
                    begun.release()
                last = json.loads(line[6:])
                samples += len(np.atleast_1d(last["audio"]))
    assert last["final"]
    return samples, json.loads(last["info"])


def write(client: Client, frames: int, seed: int, begun: threading.Semaphore) -> Outcome:
    """A stream whose text is still open when the server stops: it waits for more."""
    over = threading.Event()

    def text() -> Iterator[str]:
        yield "A long story. "
        over.wait(60.0)

    speech = client.speak_stream(text(), speaker_embedding=EMBEDDING, max_frames=frames, seed=seed)
    samples = len(next(speech).samples)
    begun.release()
    try:
        samples += sum(len(chunk.samples) for chunk in speech)
    finally:
        over.set()
    return samples, dict(speech.info or {})


def refused(client: Client, within: float) -> str:
    """The error of a new request, once the server has noticed the signal."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            client.speak("Hello.", speaker_embedding=EMBEDDING, max_frames=1).read()
        except Overloaded as error:
            return str(error)
        time.sleep(0.05)
    raise AssertionError("new requests are still taken")


def test_streams_end_on_a_signal_to_stop(server: TritonServer) -> None:
    assert server.process is not None
    begun = threading.Semaphore(0)
    with Client(server.url, model="qwen3_tts") as client, ThreadPoolExecutor(8) as pool:

        def start(make: Callable[..., Outcome], *arguments: Any) -> Future[Outcome]:
            return pool.submit(make, *arguments, begun)

        long = [start(speak, client, ENDLESS, seed) for seed in (0, 2)]
        whole = [*(start(speak, client, WHOLE, seed) for seed in (1, 3, 4)), start(speak_http, server, WHOLE, 1)]
        written = start(write, client, WHOLE, 5)
        for _ in (*long, *whole, written):
            assert begun.acquire(timeout=60.0)
        server.process.send_signal(signal.SIGTERM)
        assert "shutting down" in refused(client, within=EXIT_TIMEOUT / 2)
        for future in whole:
            samples, info = future.result(EXIT_TIMEOUT)
            assert info["finish_reason"] == "length" and samples == WHOLE * FRAME
        samples, info = written.result(EXIT_TIMEOUT)
        assert samples == WHOLE * FRAME and info["characters"] == len("A long story. ")
        for future in long:
            with pytest.raises(Overloaded, match="shutting down"):
                future.result(EXIT_TIMEOUT)
        assert server.process.wait(2 * EXIT_TIMEOUT) == 0
    assert subprocess.run(["pgrep", "-g", str(server.process.pid)], capture_output=True).stdout == b""
    assert not server.regions()
    assert server.log is not None
    text = server.log.read_text()
    assert "(version 1) has" not in text, "a request was not released"


def test_a_stop_while_the_cache_looks_for_what_voices_lack(tmp_path: Path) -> None:
    """It asks which encoders there are, which no server that stops bears from a model."""
    models = make_repository(tmp_path / "models", ("qwen3_tts", "fish_speech"))
    with (models / "speaker_cache" / "1" / "model.py").open("a") as model:
        model.write(EAGER)
    for number in range(3):
        log = tmp_path / f"log-{number}"
        with TritonServer(None, tmp_path / "voices", models=models, log=log) as server:
            cache = Cache(server)
            cache("upload", name="Ada", audio=clip(number), options={"replace": True})
            assert cache("stats")[0]["model_types"] == ["fish_speech", "qwen3_tts"]
            cache.close()
            assert server.stop() == 0, log.read_text()[-4000:]
        assert "has died" not in log.read_text()


@pytest.mark.long
def test_a_stop_right_after_a_speech(endless_checkpoint: Path, tmp_path: Path) -> None:
    """Models may be in the middle of calls to each other; no process of one may hang or crash at its end."""
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2)]
    try:
        for number in range(24):
            folder = tmp_path / str(number)
            folder.mkdir()
            with (
                endless(endless_checkpoint, folder, options=SPEECH_ALONE) as server,
                Client(server.url, model="qwen3_tts") as client,
            ):
                speeches = [client.speak(TEXT, speaker_embedding=EMBEDDING, max_frames=5, seed=seed) for seed in (0, 1)]
                assert all(speech.read()[0].size for speech in speeches)
    finally:
        for process in busy:
            process.kill()
            process.wait()
