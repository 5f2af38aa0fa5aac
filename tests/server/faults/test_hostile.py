"""Thousands of malformed and hostile requests at every model beside speech: no speech is harmed, no secret revealed.

Requests that are known to crash Triton 2.51 itself, whatever its models are, are left out:

- the header `triton_grpc_error` (see docs/triton_faults.md);
- closing a gRPC stream while the server answers it with an error: the model stays loaded, and the server waits for it
  when it stops and exits with status 1 (streams without errors are closed here, at any moment);
- shapes of which the number of bytes, modulo 2**64, is that of the bytes sent, such as FP32 [2**62] without any: the
  model's process ends when it makes the array;
- bodies in thousands of HTTP chunks, which overflow a stack (fixed in 25.07: CVE-2025-23310).
"""

from __future__ import annotations

import random
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_client import Client, VoiceCloneError

from tests.support.families.factories import CheckpointFactory
from tests.support.hostile.audio import GOOD
from tests.support.hostile.grpc import GrpcAttacker
from tests.support.hostile.http import hostile_http
from tests.support.hostile.inputs import GOOD_REQUESTS, World
from tests.support.servers.server_metrics import wait_until_quiet
from tests.support.servers.server_processes import private_memory, processes
from tests.support.waiting import WAIT
from voice_clone.speakers.voice_file import unpack_bundle
from voice_clone_server.triton_server import ROOT, TritonServer

pytestmark = pytest.mark.thorough

ATTACKERS = 6
TEXT = "All the while somebody speaks, and must not notice."
LEAKS = (
    str(ROOT),
    "Traceback",
    'File "',
    ".py",
    "site-packages",
    "/usr/",
    "/opt/",
    "/home/",
    "/tmp/",
    "/dev/",
    "/proc/",
)


@pytest.fixture
def server(checkpoint_folder: CheckpointFactory, tmp_path: Path) -> Iterator[TritonServer]:
    """A server on which the same seed gives the same codes, and streams without chunks end soon."""
    server = TritonServer(
        checkpoint_folder("tiny", 0),
        tmp_path / "voices",
        log=tmp_path / "log",
        environment={
            "VOICE_CLONE_DETERMINISTIC": "true",
            "VOICE_CLONE_STREAM_IDLE_SECONDS": "10",
            "VOICE_CLONE_TEXT_IDLE_SECONDS": "2",
        },
    )
    yield server.start()
    server.stop()


class Speakers:
    """Clients that speak all the time and compare each speech with their first one."""

    def __init__(self, server: TritonServer, world: World) -> None:
        self._client = Client(server.url)
        self._world = world
        self._seeds = range(4)
        self._expected = {seed: self._speak(seed) for seed in self._seeds}
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(2)]
        self.speeches = 0
        self.faults: list[str] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        self._client.close()

    def check(self, seed: int) -> None:
        """Speak once more; the samples may differ by rounding, which the order of floating-point sums decides."""
        expected, got = self._expected[seed], self._speak(seed)
        assert got.shape == expected.shape
        assert np.sqrt(np.mean((got - expected) ** 2)) <= 1e-4 * np.sqrt(np.mean(expected**2))

    def _speak(self, seed: int) -> NDArray[np.float32]:
        parts = []
        stream_id = ""
        for chunk in self._client.speak(TEXT, voice="Harbour", x_vector_only=seed % 2 == 1, seed=seed, max_frames=15):
            if chunk.index == 0:
                stream_id = str((chunk.info or {})["stream_id"])
                self._world.live.append(stream_id)
            parts.append(chunk.samples)
        self._world.live.remove(stream_id)
        return np.concatenate(parts)

    def _run(self, number: int) -> None:
        rng = random.Random(number)
        while True:
            try:
                self.check(rng.choice(self._seeds))
            except (VoiceCloneError, AssertionError) as error:
                self.faults.append(f"{type(error).__name__}: {error}")
            self.speeches += 1
            if self._stopping.is_set():
                return


def contents(bundle: bytes) -> list[Any]:
    """The voices of a bundle: their records and the bytes of their tensors."""
    return [
        (header.record, {name: tensor.tobytes() for name, tensor in tensors.items()})
        for header, tensors in unpack_bundle(bundle)
    ]


def model_ready(server: TritonServer, model: str) -> bool:
    with urllib.request.urlopen(f"{server.http}/v2/models/{model}/ready", timeout=10.0) as answer:
        return bool(answer.status == 200)


@pytest.mark.parametrize("requests", [120, pytest.param(10_000, marks=pytest.mark.long)])
def test_hostile_requests(
    server: TritonServer, tmp_path: Path, reference_clip: bytes, reference_text: str, requests: int
) -> None:
    with Client(server.url) as client:
        client.upload("Harbour", reference_clip, reference_text=reference_text, wait=True)
        client.upload("Mallory", GOOD["WAV"], wait=True)
        harbour, kept = client.get("Harbour"), contents(client.export("Harbour"))
        world = World(bundle=client.export("Mallory"))
        speakers = Speakers(server, world)
        grpc_attacker = GrpcAttacker(server.url)
        alive = processes(server, "S,R,D")
        faults: list[str] = []

        def attack(number: int) -> None:
            rng = random.Random(number)
            began = time.monotonic()
            try:
                said = hostile_http(server.http_port, rng, world) if rng.random() < 0.35 else grpc_attacker(rng, world)
            except Exception as error:
                said = f"hung: {type(error).__name__}: {error}"
            bad = [leak for leak in (*LEAKS, "hung: ", "DEADLINE_EXCEEDED", "the server failed") if leak in said]
            if bad:
                faults.append(f"request {number}, {time.monotonic() - began:.1f} s: {bad} in {said[:2000]}")

        with ThreadPoolExecutor(ATTACKERS) as pool:
            list(pool.map(attack, range(requests // 5)))
            before = private_memory(server)
            speakers.start()
            list(pool.map(attack, range(requests // 5, requests)))
            speakers.stop()
        assert not faults, "\n".join(faults)
        assert speakers.speeches >= 2 and not speakers.faults, speakers.faults
        assert server.ready() and processes(server, "S,R,D") == alive
        assert all(model_ready(server, model) for model in GOOD_REQUESTS)
        wait_until_quiet(server, WAIT)
        speakers.check(0)
        speakers.check(1)
        assert client.get("Harbour") == harbour and contents(client.export("Harbour")) == kept
        for voice in client.list():
            assert client.get(voice.name) == voice
        assert private_memory(server) < 1.1 * before + 50e6
        grpc_attacker.close()
        speakers.close()
    assert server.stop() == 0, "a request was never released"
    assert "(version 1) has" not in (tmp_path / "log").read_text()
