"""Prompts of new streams are read while the live streams have enough audio ahead. The clock is the model's."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.support.doubles.counted_frames import Counter, Wish, submit
from tests.support.waiting import WAIT, until
from voice_clone.batching import engine as engine_module
from voice_clone.batching.engine import MAX_STARTS, Engine
from voice_clone.batching.scheduler import PATIENCE
from voice_clone.batching.source import Frame, PayloadForm
from voice_clone.batching.stream import FrameChunk

FRAME_SECONDS = 0.08


@dataclass
class Listener:
    chunks: list[FrameChunk] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def chunk(self, chunk: FrameChunk) -> None:
        self.chunks.append(chunk)
        if chunk.finish is not None:
            self.ended.set()

    def fail(self, error: BaseException) -> None:
        raise AssertionError(error)

    def cancelled(self) -> bool:
        return False

    def stalls(self) -> int:
        """The number of chunks that were made after playback of the earlier ones had ended."""
        assert self.ended.wait(WAIT)
        found, heard_until = 0, 1e-3 * self.chunks[0].timing.generate
        for chunk in self.chunks:
            made = 1e-3 * chunk.timing.generate
            found += made > heard_until + 1e-6
            heard_until = max(made, heard_until) + FRAME_SECONDS * len(chunk.payload)
        return found


@dataclass
class Model:
    """Advances the clock with every start, every step and every piece of a prompt; submits `arrivals` at step 3.

    Pieces of more streams than `prompts_at_once` take further steps.
    """

    payload = PayloadForm(2)

    step_seconds: float
    read_seconds: float
    arrivals: list[Listener]
    pieces: int
    now: float = 100.0
    slots: int = 4
    ahead: bool = False
    one_by_one: bool = False
    prompts_at_once: int = 4
    start_seconds: float = 0.0
    steps: int = 0
    begun: list[float] = field(default_factory=list)  # when steps were, on the clock
    left: dict[int, int] = field(default_factory=dict)
    engine: Engine[int] | None = None

    def start(self, slot: int, request: int) -> int:
        self.now += self.start_seconds
        self.left[slot] = request
        return 1 if not self.steps else self.pieces

    def prefill(self, counts: Mapping[int, int]) -> None:
        self.now += self.read_seconds * math.ceil(len(counts) / self.prompts_at_once)

    def begin(self, slots: Sequence[int]) -> Callable[[], list[Frame]]:
        self.begun.append(self.now)
        self.now += self.step_seconds
        self.steps += 1
        if self.steps == 3 and self.engine is not None:
            for number, listener in enumerate(self.arrivals):
                self.engine.submit(f"new {number}", 30, listener)
        frames = []
        for slot in slots:
            self.left[slot] -= 1
            frames.append(Frame(np.zeros(2, np.int32), None if self.left[slot] else "length"))
        return lambda: frames

    def park(self, slot: int) -> object:
        raise AssertionError

    def resume(self, slot: int, stream: object) -> None:
        raise AssertionError

    def free(self, slot: int) -> None:
        del self.left[slot]

    def reset(self) -> None:
        self.left = {}


@pytest.fixture
def speak(monkeypatch: pytest.MonkeyPatch) -> Iterator[Speak]:
    speak = Speak(monkeypatch)
    yield speak
    speak.close()


class Speak:
    """Runs an engine on a model, with the model's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._engine: Engine[int] | None = None

    def __call__(self, model: Model, frame_seconds: float = FRAME_SECONDS, chunk: int = 1) -> Listener:
        self._monkeypatch.setattr(engine_module, "MAX_UNSENT", 1000)  # the outbox has no time to deliver
        self._engine = model.engine = Engine(
            model, (1, 2, 4), 64, frame_seconds, prefill_chunk=chunk, clock=lambda: model.now
        )
        listener = Listener()
        self._engine.submit("first", 100, listener)
        return listener

    def together(self, model: Model, count: int) -> list[float]:
        """Submit so many streams to an idle engine before it looks; returns their milliseconds to the first frame."""
        self._monkeypatch.setattr(engine_module, "MAX_UNSENT", 1000)
        listeners = [Listener() for _ in range(count)]
        engine = self._engine = Engine(model, (1, 2, 4), 64, FRAME_SECONDS, clock=lambda: model.now)
        with engine._changed:
            for number, listener in enumerate(listeners):
                engine.submit(f"stream {number}", 30, listener)
        assert [listener.stalls() for listener in listeners] == [0] * count
        engine.close()
        return [listener.chunks[0].timing.first_frame for listener in listeners]

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def test_no_stream_runs_dry_while_prompts_are_read(speak: Speak) -> None:
    arrivals = [Listener(), Listener()]
    first = speak(Model(step_seconds=0.03, read_seconds=0.06, arrivals=arrivals, pieces=4))
    assert [listener.stalls() for listener in (first, *arrivals)] == [0, 0, 0]


def test_prompts_are_read_at_every_step_without_a_pace(speak: Speak) -> None:
    """The streams run dry then: this is what the pace avoids."""
    arrivals = [Listener(), Listener()]
    first = speak(Model(step_seconds=0.03, read_seconds=0.06, arrivals=arrivals, pieces=4), frame_seconds=0.0)
    assert first.stalls() > 0


def test_a_new_stream_waits_for_a_limited_time(speak: Speak) -> None:
    arrival = Listener()
    model = Model(step_seconds=0.0795, read_seconds=0.06, arrivals=[arrival], pieces=2)
    speak(model)
    arrival.stalls()
    assert arrival.chunks[0].timing.prefill <= 1e3 * (PATIENCE + 2 * 0.15)


def test_a_new_stream_does_not_wait_where_all_run_dry_anyway(speak: Speak) -> None:
    arrival = Listener()
    speak(Model(step_seconds=0.2, read_seconds=0.06, arrivals=[arrival], pieces=2))
    arrival.stalls()
    assert arrival.chunks[0].timing.prefill <= 1e3 * (2 * 0.06 + 2 * 0.2) + 1e-3


def test_many_arrivals_delay_no_step_for_long(speak: Speak) -> None:
    """A few start, and as many as one step reads are read, between two steps of a live stream; all come to speak."""
    arrivals = [Listener() for _ in range(40)]
    model = Model(0.01, 0.015, arrivals, pieces=20, slots=41, prompts_at_once=2, start_seconds=0.005)
    first = speak(model, chunk=256)
    assert [listener.stalls() for listener in (first, *arrivals)] == [0] * 41
    gaps = np.diff(model.begun) - model.step_seconds
    assert gaps.max() <= MAX_STARTS * model.start_seconds + model.read_seconds + 1e-6
    waits = [listener.chunks[0].timing.first_frame for listener in arrivals]
    assert max(waits) <= 1e3 * 40 * (model.start_seconds + (model.read_seconds + model.step_seconds) / 2) + 50


def test_many_arrivals_at_an_idle_gpu(speak: Speak, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first prompts are read before the last stream starts: the first listener hears sooner, the last no later."""

    def first_frames() -> list[float]:
        model = Model(0.012, 0.008, [], pieces=1, slots=64, ahead=True, start_seconds=0.0007)
        return speak.together(model, 64)

    few = first_frames()
    monkeypatch.setattr("voice_clone.batching.engine.MAX_STARTS", 64)
    all_at_once = first_frames()
    # Its frame is looked at behind the start of the next few.
    assert few[0] == pytest.approx(all_at_once[0] - 0.7 * (64 - 2 * MAX_STARTS))
    assert max(few) <= 1.01 * max(all_at_once)
    assert np.mean(few) < np.mean(all_at_once)


@pytest.mark.parametrize(("ahead", "begun"), [(False, 9), (True, 4)])
def test_how_many_start_at_once(ahead: bool, begun: int) -> None:
    """All where none lives, unless the source works ahead; else a few."""
    source = Counter(9, ahead)
    engine: Engine[Wish] = Engine(source, (1,), 64)
    source.free_running = False
    with engine._changed:  # the engine's thread waits
        collectors = [submit(engine, str(number), Wish(100 * number, 2)) for number in range(20)]
    until(lambda: len(source.state) >= begun and not source.unread.get(begun - 1, 1))
    assert len(source.state) == begun
    source.gate.release(1000)
    assert [collector.wait().values for collector in collectors] == [[100 * n, 100 * n + 1] for n in range(20)]
    engine.close()
