"""The engine with a frame source that counts instead of computing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from voice_clone.batching.engine import Engine
from voice_clone.batching.stream import Chunk
from voice_clone.errors import Cancelled, Internal, InvalidArgument, Overloaded

WAIT = 10.0


@dataclass(frozen=True)
class CountedFrame:
    codes: NDArray[np.int32] | None
    finish: str | None


@dataclass(frozen=True)
class Wish:
    """A stream that counts up from `base` for `frames` frames."""

    base: int
    frames: int
    empty_end: bool = False  # ends like an EOS: with a step that has no frame
    fail_at: int | None = None  # this frame has finish "error"
    refuse: bool = False


class Counter:
    """Frames are [base + n, base + n]; `gate` lets a test hold the engine between steps."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.state: dict[int, tuple[Wish, int]] = {}
        self.gate = threading.Semaphore(0)
        self.free_running = True
        self.widths: list[int] = []
        self.explode = False

    def start(self, slot: int, request: Wish) -> None:
        assert slot not in self.state
        if request.refuse:
            raise InvalidArgument("refused")
        self.state[slot] = (request, 0)

    def step(self, slots: Sequence[int]) -> list[CountedFrame]:
        if not self.free_running:
            assert self.gate.acquire(timeout=WAIT)
        if self.explode:
            self.explode = False
            raise RuntimeError("boom")
        self.widths.append(len(slots))
        return [self._frame(slot) for slot in slots]

    def _frame(self, slot: int) -> CountedFrame:
        wish, made = self.state[slot]
        if wish.fail_at == made:
            return CountedFrame(None, "error")
        if wish.empty_end and made == wish.frames:
            return CountedFrame(None, "stop")
        self.state[slot] = (wish, made + 1)
        last = not wish.empty_end and made + 1 == wish.frames
        return CountedFrame(np.full(2, wish.base + made, np.int32), "length" if last else None)

    def free(self, slot: int) -> None:
        self.state.pop(slot, None)


class Collector:
    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.error: BaseException | None = None
        self.ended = threading.Event()

    def chunk(self, chunk: Chunk) -> None:
        assert not self.ended.is_set()
        self.chunks.append(chunk)
        if chunk.finish is not None:
            self.ended.set()

    def fail(self, error: BaseException) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()

    def wait(self) -> Collector:
        assert self.ended.wait(WAIT)
        return self

    @property
    def values(self) -> list[int]:
        return [int(row[0]) for chunk in self.chunks for row in chunk.codes]


@pytest.fixture
def source() -> Counter:
    return Counter(slots=2)


@pytest.fixture
def engine(source: Counter) -> Iterator[Engine[Wish]]:
    engine: Engine[Wish] = Engine(source, codebooks=2, schedule=(1, 2, 4), max_queue=3)
    yield engine
    source.free_running = True
    source.gate.release(1000)
    engine.close()


def submit(engine: Engine[Wish], name: str, wish: Wish) -> Collector:
    collector = Collector()
    engine.submit(name, wish, collector)
    return collector


@pytest.mark.parametrize("frames", [1, 2, 3, 7, 8, 30])
@pytest.mark.parametrize("empty_end", [False, True])
def test_chunks_follow_the_schedule_and_lose_nothing(engine: Engine[Wish], frames: int, empty_end: bool) -> None:
    got = submit(engine, "a", Wish(100, frames, empty_end)).wait()
    assert got.values == list(range(100, 100 + frames))
    assert [chunk.index for chunk in got.chunks] == list(range(len(got.chunks)))
    sizes = [len(chunk.codes) for chunk in got.chunks]
    assert sizes[:-1] == ([1, 2] + [4] * len(sizes))[: len(sizes) - 1]
    assert [chunk.finish for chunk in got.chunks[:-1]] == [None] * (len(sizes) - 1)
    assert got.chunks[-1].finish == ("stop" if empty_end else "length")
    assert got.chunks[-1].frames == frames
    assert all(chunk.codes.shape == (size, 2) for chunk, size in zip(got.chunks, sizes, strict=True))


def test_streams_share_steps_and_the_rest_waits(engine: Engine[Wish], source: Counter) -> None:
    source.free_running = False
    collectors = [submit(engine, str(n), Wish(1000 * n, 6)) for n in range(3)]
    source.gate.release(1000)
    for n, collector in enumerate(collectors):
        assert collector.wait().values == list(range(1000 * n, 1000 * n + 6))
    assert max(source.widths) == 2


def test_a_full_queue_refuses_at_once(engine: Engine[Wish], source: Counter) -> None:
    source.free_running = False
    collectors = [submit(engine, "live0", Wish(0, 3)), submit(engine, "live1", Wish(0, 3))]
    for _ in range(1000):  # until both have their slots
        if not engine._waiting:
            break
        threading.Event().wait(0.005)
    collectors += [submit(engine, f"waiting{n}", Wish(0, 3)) for n in range(3)]
    with pytest.raises(Overloaded, match="3 streams are waiting"):
        submit(engine, "one too many", Wish(0, 3))
    source.gate.release(1000)
    for collector in collectors:
        assert collector.wait().error is None
    assert submit(engine, "later", Wish(7, 1)).wait().values == [7]


def test_cancel_frees_the_slot_of_a_live_and_of_a_waiting_stream(engine: Engine[Wish], source: Counter) -> None:
    source.free_running = False
    live = [submit(engine, "a", Wish(0, 10**6)), submit(engine, "b", Wish(0, 10**6))]
    waiting = submit(engine, "c", Wish(0, 10**6))
    source.gate.release(3)
    assert engine.cancel("c") and engine.cancel("a")
    source.gate.release(2)
    assert isinstance(waiting.wait().error, Cancelled)
    assert isinstance(live[0].wait().error, Cancelled)
    assert not engine.cancel("a") and not engine.cancel("never")
    after = submit(engine, "d", Wish(5, 2))
    source.gate.release(10)
    assert after.wait().values == [5, 6]
    engine.cancel("b")
    source.gate.release(10)
    live[1].wait()


def test_a_failure_stays_with_its_stream(engine: Engine[Wish]) -> None:
    good = submit(engine, "good", Wish(0, 40))
    assert isinstance(submit(engine, "bad start", Wish(0, 5, refuse=True)).wait().error, InvalidArgument)
    assert isinstance(submit(engine, "bad frame", Wish(0, 5, fail_at=2)).wait().error, Internal)
    assert good.wait().values == list(range(40))


def test_a_failed_step_ends_its_streams_and_the_engine_goes_on(engine: Engine[Wish], source: Counter) -> None:
    source.explode = True
    assert isinstance(submit(engine, "a", Wish(0, 5)).wait().error, Internal)
    assert submit(engine, "a", Wish(3, 2)).wait().values == [3, 4]


def test_an_id_names_one_live_stream(engine: Engine[Wish], source: Counter) -> None:
    source.free_running = False
    first = submit(engine, "same", Wish(0, 2))
    with pytest.raises(InvalidArgument, match="stream_id"):
        submit(engine, "same", Wish(0, 2))
    source.gate.release(10)
    first.wait()


def test_close_finishes_what_runs_and_refuses_what_comes() -> None:
    source = Counter(slots=1)
    engine: Engine[Wish] = Engine(source, codebooks=2, schedule=(2,), max_queue=8)
    collectors = [submit(engine, str(n), Wish(n, 5)) for n in range(3)]
    engine.close()
    for n, collector in enumerate(collectors):
        assert collector.wait().values == list(range(n, n + 5))
    with pytest.raises(Overloaded, match="shutting down"):
        submit(engine, "late", Wish(0, 1))
    assert source.state == {}
