"""A server takes over the voices of another while a client goes on: no voice that was acknowledged is lost."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from voice_clone_client import Client, InvalidArgument, VoiceCloneError, VoiceNotFound

from tests.conftest import CheckpointFactory
from tools.triton_server import TritonServer

T = TypeVar("T")
PATIENCE = 120.0  # seconds


class Retrying:
    """Asks one server after the other until one answers."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._clients = [Client(url, timeout=10.0) for url in urls]

    def __call__(self, ask: Callable[[Client], T]) -> T:
        deadline = time.monotonic() + PATIENCE
        for client in itertools.cycle(self._clients):
            try:
                return ask(client)
            except (InvalidArgument, VoiceNotFound):
                raise
            except VoiceCloneError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        raise AssertionError("unreachable")

    def close(self) -> None:
        for client in self._clients:
            client.close()


def test_a_rolling_restart_loses_no_voice(checkpoint_folder: CheckpointFactory, tmp_path: Path) -> None:
    def server(name: str) -> TritonServer:
        return TritonServer(
            checkpoint_folder("tiny", 0),
            tmp_path / "voices",
            log=tmp_path / name,
            environment={"VOICE_CLONE_VOICE_DIR_WAIT": "120", "OMP_NUM_THREADS": "1"},
        )

    old, new = server("old"), server("new")
    ask = Retrying([old.url, new.url])
    acknowledged: dict[str, np.ndarray] = {}
    spoken: list[int] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def register() -> None:
        try:
            for number in itertools.count():
                if done.is_set():
                    return
                name, embedding = f"Voice {number}", np.random.default_rng(number).normal(size=64).astype(np.float32)
                ask(lambda client, n=name, e=embedding: client.upload(n, speaker_embedding=e))
                acknowledged[name] = embedding
                speech = ask(lambda client, n=name: client.speak("Hi.", voice=n, max_frames=2, deadline=20.0).read())
                spoken.append(len(speech[0]))
        except BaseException as error:
            failures.append(error)

    caller = threading.Thread(target=register)
    starting = threading.Thread(target=new.start)
    try:
        with old:
            caller.start()
            wait_for(lambda: len(acknowledged) >= 5)
            starting.start()
            wait_for(lambda: waits_for_the_voices(tmp_path / "new"))
        starting.join(PATIENCE)
        assert new.ready()
        before = len(acknowledged)
        wait_for(lambda: bool(failures) or len(acknowledged) >= before + 5)
        done.set()
        caller.join(PATIENCE)
        assert not failures, failures
        with Client(new.url) as client:
            assert {voice.name for voice in client.list()} >= set(acknowledged)
            for name in acknowledged:
                assert client.get(name).embedding_source == "direct"
        assert spoken and set(spoken) == {2 * 1920}
    finally:
        done.set()
        ask.close()
        caller.join(PATIENCE)
        old.stop()
        new.stop()


def waits_for_the_voices(log: Path) -> bool:
    """Whether a starting server has come to its speaker cache."""
    return log.exists() and "speaker_cache_0" in log.read_text()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
