"""Inside an ensemble a stream ends soon after its client has left, however large its chunks are."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.doubles.counted_frames import Counter, Wish
from tests.support.families.talker_inputs import read
from tests.support.families.talkers import read_config
from tests.support.waiting import WAIT, until
from voice_clone.batching.engine import Engine
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.triton.stages.streams import LastChunks
from voice_clone.triton.stages.talker_sink import TalkerSink


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSConfig:
    return read_config("projected", tmp_path_factory.mktemp("checkpoint") / "folder")


class Ensemble:
    """The answer of a talker inside an ensemble: it learns of no cancel; each response is a request of code2wav."""

    def __init__(self) -> None:
        self.engine: Engine[Wish]
        self.left = False
        self.cancel_sent = False
        self.heartbeats = 0
        self.frames = 0
        self.ended = threading.Event()

    def cancelled(self) -> bool:
        return False

    def send(self, outputs: Mapping[str, Any], final: bool = False) -> None:
        self.heartbeats += not final and not len(outputs["codes"])
        self.frames += len(outputs["codes"])
        if self.left:
            self.cancel_sent |= self.engine.cancel("s")
        if final:
            self.ended.set()

    def fail(self, error: BaseException) -> None:
        self.ended.set()


@pytest.mark.parametrize("made", [0, 1, 39, 40, 70])
def test_two_frames_after_the_client_left_the_slot_is_free(config: Qwen3TTSConfig, made: int) -> None:
    source, ensemble = Counter(slots=1), Ensemble()
    source.free_running = False
    ensemble.engine = engine = Engine(source, schedule=[40], max_queue=1)
    engine.submit("s", Wish(0, 1000), TalkerSink(read(config), ensemble, LastChunks()))

    def frames() -> int:
        return sum(kind == "frame" for kind, _, _ in source.log)

    def step() -> None:
        """One frame, or none if the stream has ended."""
        before = frames()
        source.gate.release()
        until(lambda: frames() > before or not source.state)

    until(lambda: bool(source.state))
    for _ in range(made):
        step()
    ensemble.left = True
    while source.state:
        # A frame takes longer here than the engine takes to look after its streams, as it does with a real model.
        before = ensemble.heartbeats
        until(lambda: ensemble.heartbeats > before or ensemble.cancel_sent)  # noqa: B023
        step()
        assert frames() <= made + 2
    assert ensemble.ended.wait(WAIT)
    engine.close()


def test_a_stream_that_waits_for_a_slot_leaves_the_queue(config: Qwen3TTSConfig) -> None:
    source, ensemble = Counter(slots=1), Ensemble()
    source.free_running = False
    ensemble.engine = engine = Engine(source, schedule=[40], max_queue=1)
    other = Ensemble()
    other.engine = engine
    engine.submit("other", Wish(0, 2), TalkerSink(read(config), other, LastChunks()))
    engine.submit("s", Wish(0, 1000), TalkerSink(read(config), ensemble, LastChunks()))
    until(lambda: ensemble.heartbeats > 0)
    ensemble.left = True
    until(lambda: ensemble.cancel_sent)
    source.gate.release(2)
    assert ensemble.ended.wait(WAIT) and other.ended.wait(WAIT)
    assert ensemble.frames == 0 and other.frames == 2
    engine.close()
