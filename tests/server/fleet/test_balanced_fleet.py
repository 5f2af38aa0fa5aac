"""Three whole tritonservers behind HAProxy: a rolling restart under load, and how often a voice is warm."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from voice_clone_client import Client, VoiceCloneError

from tests.support.doubles.fakes import clip
from tests.support.families.factories import CheckpointFactory
from tests.support.official.haproxy import HAProxy, is_installed
from tests.support.official.postgres import Databases
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not is_installed(), reason="HAProxy is not installed (on Debian: apt-get install haproxy)"),
]
PATIENCE = 900.0  # seconds, for machines that are busy with something else
CALLERS = 4
VOICES = 10  # no multiple of the servers: in turns, a voice gets to all of them
ROUNDS = 6


@pytest.fixture(scope="module")
def servers(
    checkpoint_folder: CheckpointFactory, databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[TritonServer]]:
    folder, dsn = tmp_path_factory.mktemp("balanced"), databases.take()
    environment = {"VOICE_CLONE_VOICE_STORE": dsn, "VOICE_CLONE_VOICE_STORE_TIMEOUT": "20"}
    checkpoint = checkpoint_folder("tiny", 0)
    made = [TritonServer(checkpoint, log=folder / f"log-{each}", environment=environment) for each in range(3)]
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda server: server.start(PATIENCE), made))
        yield made
    finally:
        for server in made:
            server.kill()
            server.stop()
    databases.give_back(dsn)


class Load:
    """Callers that speak, and one that registers voices, until they are to stop.

    Attributes:
        spoken: whole speeches.
        refused: errors before the first chunk.
        broken: errors after it.
        acknowledged: the voices that a server said it has, and their speaker embeddings.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._done = threading.Event()
        self.spoken = 0
        self.refused: list[VoiceCloneError] = []
        self.broken: list[VoiceCloneError] = []
        self.in_doubt: list[VoiceCloneError] = []
        self.acknowledged: dict[str, np.ndarray] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While the body runs."""
        with ThreadPoolExecutor(CALLERS + 1) as pool:
            work = [pool.submit(self._speak, number) for number in range(CALLERS)]
            work.append(pool.submit(self._register))
            try:
                yield
            finally:
                self._done.set()
            for each in work:
                each.result()

    def _speak(self, number: int) -> None:
        with Client(self._url, timeout=PATIENCE) as client:
            for turn in itertools.count(number):
                if self._done.is_set():
                    return
                began = False
                try:
                    with client.speak("Hi.", voice=f"v{turn % VOICES}", max_frames=4, deadline=PATIENCE) as speech:
                        for _ in speech:
                            began = True
                    self.spoken += 1
                except VoiceCloneError as error:
                    (self.broken if began else self.refused).append(error)
                    self._done.wait(0.5)

    def _register(self) -> None:
        with Client(self._url, timeout=PATIENCE) as client:
            for number in itertools.count():
                if self._done.wait(0.5):
                    return
                embedding = np.random.default_rng(number).normal(size=64).astype(np.float32)
                try:
                    client.upload(f"new {number}", speaker_embedding=embedding)
                    self.acknowledged[f"new {number}"] = embedding
                except VoiceCloneError as error:
                    self.in_doubt.append(error)


def hit_rate(url: str, name: str) -> float:
    """The part of speeches that found the state of the codec behind the voice's clip in memory."""
    found = Counter[str]()
    with Client(url, timeout=PATIENCE) as client:
        for _ in range(ROUNDS):
            for number in range(VOICES):
                speech = client.speak("Hi.", voice=f"{name} {number}", max_frames=2, deadline=PATIENCE)
                speech.read()
                assert speech.info is not None
                found[str(speech.info["primed"])] += 1
    assert found["hit"] + found["miss"] == ROUNDS * VOICES
    return found["hit"] / (ROUNDS * VOICES)


def test_a_voice_stays_warm_with_its_header(servers: list[TritonServer], tmp_path: Path) -> None:
    ways = ("header", "turns", "client")
    with Client(servers[0].url, timeout=PATIENCE) as client:
        for way, name in enumerate(ways):
            for number in range(VOICES):
                own = clip(VOICES * way + number)  # the state is that of a clip: voices of one clip share it
                client.upload(f"{name} {number}", own, reference_text="Hello.")
                client.prepare(f"{name} {number}")
    rates = {}
    for name, affinity in (("header", True), ("turns", False)):
        folder = tmp_path / name
        folder.mkdir()
        with HAProxy(servers, folder, affinity) as balancer:
            until(lambda balancer=balancer: all(state == "UP" for state, _ in balancer.states().values()), PATIENCE)
            rates[name] = hit_rate(balancer.url, name)
    rates["client"] = hit_rate(",".join(server.url for server in servers), "client")
    sys.stdout.write(f"\nhit rates of primed states, {VOICES} voices spoken {ROUNDS} times each: {rates}\n")
    assert rates["client"] == (ROUNDS - 1) / ROUNDS, "each voice is cold once"
    assert rates["header"] == (ROUNDS - 1) / ROUNDS
    assert rates["turns"] <= (ROUNDS - 3) / ROUNDS, "each voice is cold once on each server"


def test_a_rolling_restart_fails_no_speech_that_has_not_begun_and_loses_no_voice(
    servers: list[TritonServer], tmp_path: Path
) -> None:
    with Client(servers[0].url, timeout=PATIENCE) as client:
        for number in range(VOICES):
            embedding = np.random.default_rng(1000 + number).normal(size=64).astype(np.float32)
            client.upload(f"v{number}", speaker_embedding=embedding)
    with HAProxy(servers, tmp_path) as balancer:
        load = Load(balancer.url)

        def has_spoken(count: int) -> bool:
            return load.spoken >= count or bool(load.refused or load.broken)

        def is_up(name: str) -> bool:
            return balancer.states()[name][0] == "UP"

        until(lambda: all(is_up(name) for name in balancer.states()), PATIENCE)
        with load.running():
            until(lambda: has_spoken(10), PATIENCE)
            for number, server in enumerate(servers):
                before = load.spoken
                balancer.drain(number)
                until(lambda number=number: balancer.states()[f"s{number}"][1] == 0, PATIENCE)
                assert server.process is not None
                server.process.terminate()
                assert server.process.wait(PATIENCE) == 0
                server.start(PATIENCE)
                balancer.resume(number)
                until(lambda number=number: is_up(f"s{number}"), PATIENCE)
                until(lambda before=before: has_spoken(before + 10), PATIENCE)
    sys.stdout.write(
        f"\nrolling restart: {load.spoken} speeches whole, {len(load.refused)} failed before they began, "
        f"{len(load.broken)} broken; {len(load.acknowledged)} voices acknowledged, {len(load.in_doubt)} refused\n"
    )
    assert load.refused == [] and load.broken == [] and load.in_doubt == []
    for server in servers:
        with Client(server.url, timeout=PATIENCE) as client:
            names = {voice.name for voice in client.list()}
            assert load.acknowledged.keys() <= names
    with Client(servers[0].url, timeout=PATIENCE) as client:
        for name, embedding in load.acknowledged.items():
            np.testing.assert_array_equal(client.speaker_embedding(name), embedding)
