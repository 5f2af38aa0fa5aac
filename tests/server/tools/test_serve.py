"""tools/serve with the gateway, on what tools/build_repository made: one Ready with every address, and a quiet log."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np
import psutil
import pytest
from voice_clone_client import Client

from tests.support.families.factories import CheckpointFactory
from tests.support.servers.left_behind import wait_until_gone
from voice_clone_server.build_repository import main as build
from voice_clone_server.triton_server import ROOT, free_ports

pytestmark = pytest.mark.thorough

LOADING = 200.0
GATEWAY = "voice_clone_gateway"  # of its command
ENDED = "the gateway has ended by itself, with status -9"
EMBEDDING = np.random.default_rng(0).normal(size=64).astype(np.float32)
HOSTS = ["127.0.0.1", "::1"]
PROXIES = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"), "http://127.0.0.1:9")
"""Where nothing answers: the tool asks its own servers directly."""
KILLS = 50
OPTIONS = ["--gateway-max-input-characters", "5", "--gateway-model-aliases=tts=qwen3_tts", "--restarts", str(2 * KILLS)]


class Served:
    """The tool, which has said that it is ready."""

    def __init__(self, models: Path, folder: Path, host: str) -> None:
        self.host = f"[{host}]" if ":" in host else host
        """As in a URL."""
        self.voices, self.log = folder / "voices", folder / "log"
        self.ports = [str(port) for port in free_ports(4)]
        kinds = ("--grpc-port", "--http-port", "--metrics-port", "--gateway")
        self.command = [
            sys.executable,
            "-m",
            "tools.run",
            "voice_clone_server.serve",
            "--models",
            str(models),
            "--host",
            host,
        ]
        self.command += [word for pair in zip(kinds, self.ports, strict=True) for word in pair]
        with self.log.open("wb") as log:
            words = [*self.command, "--voices", str(self.voices), *OPTIONS]
            environment = {name: value for name, value in os.environ.items() if not name.startswith("VOICE_CLONE_")}
            environment = {**environment, **PROXIES, "no_proxy": ""}
            self.process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + LOADING
        while "\nReady" not in self.text:
            assert self.process.poll() is None and time.monotonic() < deadline, self.text
            time.sleep(0.1)

    @property
    def text(self) -> str:
        return self.log.read_text()


@pytest.fixture(scope="module", params=HOSTS)
def served(
    checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    words = ["--checkpoint", str(checkpoint_folder("tiny", 0)), "--output", str(folder / "models")]
    assert build([*words, "--precision", "int8"]) == 0
    tool = Served(folder / "models", folder, request.param)
    yield tool
    tool.process.send_signal(signal.SIGKILL)
    tool.process.wait(30)
    wait_until_gone(str(tool.process.pid))


def test_every_address_that_it_prints_answers(served: Served) -> None:
    grpc, http, metrics, gateway = served.ports
    reported = dict(re.findall(r"^  (\w+) +(\S.*)$", served.text.partition("\nReady")[2], re.MULTILINE))
    assert reported == {
        "gRPC": f"{served.host}:{grpc}",
        "HTTP": f"http://{served.host}:{http}",
        "metrics": f"http://{served.host}:{metrics}/metrics",
        "gateway": f"http://{served.host}:{gateway}/v1",
        "page": f"http://{served.host}:{gateway}/",
        "qwen3_tts": "int8 on cpu",
    }
    assert served.text.count("Ready") == 1
    with Client(reported["gRPC"]) as client:
        assert client.models() == ["qwen3_tts"]
    for url in (
        f"{reported['HTTP']}/v2/health/ready",
        reported["metrics"],
        f"{reported['gateway']}/models",
        reported["page"],
    ):
        assert httpx2.get(url, timeout=LOADING).status_code == 200, url


def test_the_gateway_has_its_options(served: Served) -> None:
    body = {"voice": "anna", "input": "Too long."}
    answer = httpx2.post(f"http://{served.host}:{served.ports[3]}/v1/audio/speech", json=body, timeout=LOADING)
    assert answer.status_code == 400 and "5 are allowed" in answer.json()["error"]["message"], answer.text


def test_the_log_is_quiet(served: Served) -> None:
    first_start = ("s so far", "native code compiled")
    lines = [line for line in served.text.splitlines() if ENDED not in line]
    lines = [line for line in lines if not any(words in line for words in first_start)]
    assert len(lines) < 25, served.text
    for word in ("CUDA", "NVML", "DCGM", "pinned", "Traceback", "model_lifecycle", "uvicorn", "+---"):
        assert word not in served.text


def kill_gateway(served: Served) -> None:
    """The one that runs or starts now, if there is one."""
    for each in psutil.Process(served.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if GATEWAY in each.cmdline():
                each.kill()


@pytest.mark.parametrize("kills", [1, pytest.param(KILLS, marks=pytest.mark.long)])
def test_streams_go_on_while_the_gateway_is_killed_and_started_again(served: Served, kills: int) -> None:
    begun, over = threading.Event(), threading.Event()

    def speak() -> int:
        """How many streams have ended as they should."""
        with Client(f"{served.host}:{served.ports[0]}") as client:
            for count in itertools.count(1):
                speech = client.speak("A long story.", speaker_embedding=EMBEDDING, max_frames=100)
                for _ in speech:
                    begun.set()
                assert speech.info is not None
                if over.is_set():
                    return count
        raise AssertionError

    with ThreadPoolExecutor(1) as pool:
        streams = pool.submit(speak)
        assert begun.wait(LOADING)
        try:
            for number in range(kills):
                kill_gateway(served)
                if number % 3 == 2:  # also while it starts
                    time.sleep(0.2 * (number % 4))
                    kill_gateway(served)
                answer = httpx2.get(f"http://{served.host}:{served.ports[3]}/health", timeout=LOADING)
                assert answer.status_code == 200
        finally:
            over.set()
        assert streams.result(LOADING)
    assert served.process.poll() is None and served.text.count(ENDED) >= kills


def test_a_folder_of_voices_in_use_is_reported_before_a_server_starts(
    served: Served, checkpoint_folder: CheckpointFactory
) -> None:
    ports = [
        word
        for kind, port in zip(("grpc", "http", "metrics"), free_ports(3), strict=True)
        for word in (f"--{kind}-port", str(port))
    ]
    words = ["--checkpoint", str(checkpoint_folder("tiny", 0)), "--voices", str(served.voices), *ports]
    done = subprocess.run(
        [sys.executable, "-m", "tools.run", "voice_clone_server.serve", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LOADING,
    )
    assert done.returncode == 2 and not done.stdout
    assert re.fullmatch(
        rf"tools/serve: {served.voices} is in use by process \d+ on \S+; stop that server, or give .*--voices\n",
        done.stderr,
    )


def test_a_gateway_that_ends_is_reported_and_ends_the_server(
    checkpoint_folder: CheckpointFactory, tmp_path: Path
) -> None:
    """One that cannot start, for a reason that only it finds."""
    grpc, http, metrics, gateway = map(str, free_ports(4))
    ports = ["--grpc-port", grpc, "--http-port", http, "--metrics-port", metrics, "--gateway", gateway]
    words = ["--checkpoint", str(checkpoint_folder("tiny", 0)), "--voices", str(tmp_path / "voices"), *ports]
    done = subprocess.run(
        [sys.executable, "-m", "tools.run", "voice_clone_server.serve", *words, "--gateway-api-keys-file", "nowhere"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LOADING,
    )
    assert done.returncode == 1 and "Ready" not in done.stdout
    assert "nowhere" in done.stderr and "tools/serve: the gateway did not start" in done.stderr
