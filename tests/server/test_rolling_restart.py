"""A server takes over the voices of another while a client goes on: no voice that was acknowledged is lost."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from voice_clone_client import Client, InvalidArgument, VoiceCloneError, VoiceNotFound

from tests.conftest import CheckpointFactory
from tools.triton_server import TritonServer

T = TypeVar("T")
PATIENCE = 120.0  # seconds
FRAMES = 2


class Caller:
    """Registers voice after voice and speaks in each, at one server or the other, whichever answers.

    Attributes:
        acknowledged: the voices that a server said it has, and their speaker embeddings.
        spoken: samples of each speech.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._clients = [Client(url, timeout=10.0) for url in urls]
        self._done = threading.Event()
        self.acknowledged: dict[str, np.ndarray] = {}
        self.spoken: list[int] = []

    def run(self) -> None:
        """Until `stop`; raises what a retry does not help."""
        for number in itertools.count():
            if self._done.wait(0.05):
                return
            name, embedding = f"Voice {number}", np.random.default_rng(number).normal(size=64).astype(np.float32)
            self._ask(lambda client, n=name, e=embedding: client.upload(n, speaker_embedding=e))
            self.acknowledged[name] = embedding
            speech = self._ask(
                lambda client, n=name: client.speak("Hi.", voice=n, max_frames=FRAMES, deadline=20.0).read()
            )
            self.spoken.append(len(speech[0]))

    def stop(self) -> None:
        self._done.set()

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _ask(self, ask: Callable[[Client], T]) -> T:
        deadline = time.monotonic() + PATIENCE
        for client in itertools.cycle(self._clients):
            try:
                return ask(client)
            except (InvalidArgument, VoiceNotFound):
                raise
            except VoiceCloneError:
                if self._done.is_set() or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        raise AssertionError("unreachable")


@pytest.mark.long
def test_a_rolling_restart_loses_no_voice(checkpoint_folder: CheckpointFactory, tmp_path: Path) -> None:
    def server(name: str) -> TritonServer:
        return TritonServer(
            checkpoint_folder("tiny", 0),
            tmp_path / "voices",
            log=tmp_path / name,
            environment={"VOICE_CLONE_VOICE_DIR_WAIT": str(PATIENCE), "OMP_NUM_THREADS": "1"},
        )

    old, new = server("old"), server("new")
    caller = Caller([old.url, new.url])
    start: Future[Any] | None = None

    with ThreadPoolExecutor(2) as pool:
        try:
            old.start()
            calling = pool.submit(caller.run)

            def registers(count: int) -> None:
                """Wait until so many more voices are registered."""
                enough = len(caller.acknowledged) + count
                wait_for(lambda: calling.done() or len(caller.acknowledged) >= enough)

            registers(5)
            start = pool.submit(new.start, PATIENCE)
            wait_for(lambda: "the voice directory is in use" in read(tmp_path / "new"))
            registers(5)
            assert not start.done()
            old.stop()
            start.result()
            registers(5)
            caller.stop()
            calling.result(PATIENCE)
            with Client(new.url) as client:
                assert {voice.name for voice in client.list()} == set(caller.acknowledged)
                for name, embedding in caller.acknowledged.items():
                    np.testing.assert_array_equal(client.speaker_embedding(name), embedding)
            assert set(caller.spoken) == {FRAMES * 1920}
        finally:
            caller.stop()
            old.stop()
            if start is not None:
                start.exception()  # until it has started there may be no process to stop
            new.stop()
            caller.close()


def read(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
