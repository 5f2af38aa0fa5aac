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
from voice_clone_client import (
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    VoiceCloneError,
    VoiceNotFound,
)

from tests.support.families.factories import CheckpointFactory
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

T = TypeVar("T")
PATIENCE = 300.0  # seconds, for machines that are busy with something else
FRAMES = 2
RETRIED = (ConnectionFailed, Overloaded, DeadlineExceeded)  # the last only because this machine may be that busy


class Caller:
    """Registers voice after voice and speaks in each, at one server until it fails, then at the other.

    Attributes:
        acknowledged: the voices that a server said it has, and their speaker embeddings.
        spoken: samples of each speech.
        retried: the errors after which it asked again, the latest of each text.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._clients = [Client(url, timeout=30.0) for url in urls]
        self._turns = itertools.cycle(self._clients)
        self._client = next(self._turns)
        self._done, self._given_up = threading.Event(), threading.Event()
        self.acknowledged: dict[str, np.ndarray] = {}
        self.spoken: list[int] = []
        self.retried: dict[str, VoiceCloneError] = {}

    def run(self) -> None:
        """Until `stop`; raises what a retry does not help."""
        for number in itertools.count():
            if self._done.wait(0.05):
                return
            name, embedding = f"Voice {number}", np.random.default_rng(number).normal(size=64).astype(np.float32)
            self._ask(lambda client, n=name, e=embedding: client.upload(n, speaker_embedding=e))
            self.acknowledged[name] = embedding
            speech = self._ask(
                lambda client, n=name: client.speak("Hi.", voice=n, max_frames=FRAMES, deadline=30.0).read()
            )
            self.spoken.append(len(speech[0]))

    def stop(self) -> None:
        """After the voice that it is at."""
        self._done.set()

    def give_up(self) -> None:
        """At the next error, for there may be no server any more."""
        self._done.set()
        self._given_up.set()

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _ask(self, ask: Callable[[Client], T]) -> T:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return ask(self._client)
            except (InvalidArgument, VoiceNotFound):
                raise
            except VoiceCloneError as error:
                if self._given_up.is_set() or time.monotonic() > deadline:
                    raise
                self.retried[str(error)] = error
                self._client = next(self._turns)
                time.sleep(0.1)


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
                until(lambda: calling.done() or len(caller.acknowledged) >= enough, PATIENCE)

            registers(5)
            start = pool.submit(new.start, PATIENCE)
            starting = start
            until(lambda: starting.done() or "the voice directory is in use" in read(tmp_path / "new"), PATIENCE)
            registers(5)
            assert not start.done(), start.exception()
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
            assert caller.retried
            assert not [error for error in caller.retried.values() if not isinstance(error, RETRIED)]
        finally:
            caller.give_up()
            old.stop()
            if start is not None:
                start.exception()  # until it has started there may be no process to stop
            new.stop()
            caller.close()


def read(log: Path) -> str:
    return log.read_text() if log.exists() else ""
