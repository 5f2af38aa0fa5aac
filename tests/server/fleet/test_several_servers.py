"""Two whole tritonservers with one set of voices: client, gateway, one that dies, and what is kept of a deletion."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np
import pytest
from voice_clone_client import AsyncClient, Client, ConnectionFailed

from perf.bench.gateway_process import Gateway
from tests.support.families.factories import CheckpointFactory
from tests.support.official.postgres import Databases
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.thorough

# A home depends on the servers' ports, which chance gives. All of so many have the same one in 1 of 30,000 runs.
NAMES = [f"Voice {number}" for number in range(16)]


@pytest.fixture(scope="module")
def started(
    checkpoint_folder: CheckpointFactory, databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[TritonServer]]:
    folder, dsn = tmp_path_factory.mktemp("pair"), databases.take()
    environment = {"VOICE_CLONE_VOICE_STORE": dsn, "VOICE_CLONE_VOICE_STORE_TIMEOUT": "20"}
    checkpoint = checkpoint_folder("tiny", 0)
    servers = [TritonServer(checkpoint, log=folder / f"log-{each}", environment=environment) for each in "ab"]
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda server: server.start(900), servers))
        yield servers
    finally:
        for server in servers:
            server.kill()
            server.stop()
    databases.give_back(dsn)


@pytest.fixture
def pair(started: list[TritonServer]) -> list[TritonServer]:
    """Both alive: one may have died in the test before."""
    for server in started:
        if server.process is None or server.process.poll() is not None:
            server.start(900)
    return started


@pytest.fixture
def url(pair: list[TritonServer]) -> str:
    return ",".join(server.url for server in pair)


@pytest.fixture(scope="module")
def voices(started: list[TritonServer]) -> list[str]:
    """Registered voices, by one server."""
    with Client(started[0].url) as client:
        for number, name in enumerate(NAMES):
            embedding = np.random.default_rng(number).normal(size=64).astype(np.float32)
            client.upload(name, speaker_embedding=embedding)
    return NAMES


def test_each_voice_is_spoken_by_its_home_and_by_the_other_one_when_that_has_died(
    pair: list[TritonServer], url: str, voices: list[str], tmp_path: Path
) -> None:
    async def in_turns(client: AsyncClient) -> list[int]:
        # Not at once: then a server that has more than its share of them sends some to the other one.
        speeches = [await client.speak("Hi.", voice=name, max_frames=2, deadline=120.0).read() for name in voices]
        return [len(samples) for samples, _ in speeches]

    def spoken() -> list[int]:
        found = []
        for server in pair:
            with Client(server.url) as client:
                found.append(client.stats()["entries"])
        return found

    async def run() -> None:
        async with AsyncClient(url) as client:
            for _ in range(3):
                assert await in_turns(client) == [2 * 1920] * len(voices)

    def over_http(http: httpx2.Client) -> list[int]:
        bodies = [{"input": "Hi.", "voice": name, "response_format": "pcm", "max_frames": 2} for name in voices]
        return [http.post("/v1/audio/speech", json=body).status_code for body in bodies]

    with (
        Client(url) as client,
        Gateway(url, tmp_path / "log") as gateway,
        httpx2.Client(base_url=gateway.url, timeout=120.0, trust_env=False) as http,
    ):
        before = spoken()
        for _ in range(3):
            for name in voices:
                assert len(client.speak("Hi.", voice=name, max_frames=2, deadline=120.0).read()[0]) == 2 * 1920
        entries = spoken()
        new = [now - then for now, then in zip(entries, before, strict=True)]
        assert sum(new) == len(voices) and min(new) > 0, "each voice is in the memory of its home alone"
        asyncio.run(run())
        assert spoken() == entries, "both kinds of clients have the same homes"
        assert over_http(http) == [200] * len(voices)
        assert spoken() == entries
        pair[1].kill()
        assert over_http(http) == [200] * len(voices)
        assert http.get("/health").status_code == 200
        for name in voices:
            assert len(client.speak("Hi.", voice=name, max_frames=2, deadline=120.0).read()[0]) == 2 * 1920
            assert client.get(name).name == name


@pytest.mark.long
def test_one_that_comes_back_gets_its_voices_again(pair: list[TritonServer], url: str, voices: list[str]) -> None:
    with Client(url) as client, Client(pair[1].url) as second:
        pair[1].kill()
        for name in voices:
            client.speak("Hi.", voice=name, max_frames=2, deadline=120.0).read()
        pair[1].start(900)

        def back() -> bool:
            for name in voices:
                client.speak("Hi.", voice=name, max_frames=2, deadline=120.0).read()
            with contextlib.suppress(ConnectionFailed):  # gRPC pauses before it tries an address of this process again
                return int(second.stats()["entries"]) > 0
            return False

        until(back)


def test_a_deletion_reaches_the_talkers_of_the_other_servers(
    pair: list[TritonServer], reference_clip: bytes, reference_text: str
) -> None:
    """What they keep of a voice beyond its artifacts: prefixes of prompts, and primed states of the codec."""
    with Client(pair[0].url) as one, Client(pair[1].url) as other:
        one.upload("Gone", reference_clip, reference_text=reference_text, wait=True)
        generation = other.get("Gone").generation
        for client in (one, other):
            client.speak("Hi.", voice="Gone", max_frames=2, deadline=120.0).read()
            info = client.speak("Hi.", voice="Gone", max_frames=2, deadline=120.0)
            info.read()
            assert info.info is not None and info.info["primed"] == "hit"
        before = _kept(other)
        assert all(before[model] > 0 for model in ("qwen3_tts_talker", "qwen3_tts_code2wav"))
        one.delete("Gone")
        after = {model: number - 1 for model, number in before.items()}
        until(lambda: _kept(other) == after)  # no caller asks it for a voice
        one.upload("Gone", reference_clip, reference_text=reference_text, wait=True)
        assert generation is not None and (other.get("Gone").generation or 0) > generation
        speech = other.speak("Hi.", voice="Gone", max_frames=2, deadline=120.0)
        speech.read()
        assert speech.info is not None and speech.info["primed"] == "miss"


def _kept(client: Client) -> dict[str, int]:
    """Of how many voices each model keeps something."""
    return {model: reported["voices"] for model, reported in client.stats()["kept"].items()}
