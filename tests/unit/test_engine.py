"""The engine with a frame source that counts instead of computing."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from voice_clone.batching.engine import MAX_UNSENT, Engine
from voice_clone.batching.statistics import Statistics
from voice_clone.batching.stream import Chunk
from voice_clone.errors import Cancelled, DeadlineExceeded, Internal, InvalidArgument, Overloaded

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
    raise_at: int | None = None  # every step with this frame raises
    refuse: bool = False
    prompt: int = 3
    bad_prompt: bool = False


class Counter:
    """Frames are [base + n, base + n]; `gate` lets a test hold the engine between steps."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.state: dict[int, tuple[Wish, int]] = {}
        self.unread: dict[int, int] = {}
        self.gate = threading.Semaphore(0)
        self.free_running = True
        self.widths: list[int] = []
        self.log: list[tuple[str, int, int]] = []  # ("prefill", base, count) and ("frame", base, number)
        self.break_free = False
        self.lose_a_frame = False

    def start(self, slot: int, request: Wish) -> int:
        assert slot not in self.state
        if request.refuse:
            raise InvalidArgument("refused")
        self.state[slot] = (request, 0)
        self.unread[slot] = request.prompt
        return request.prompt

    def prefill(self, slot: int, count: int) -> None:
        wish = self.state[slot][0]
        if wish.bad_prompt:
            raise RuntimeError("bad prompt")
        assert 0 < count <= self.unread[slot]
        self.unread[slot] -= count
        self.log.append(("prefill", wish.base, count))

    def step(self, slots: Sequence[int]) -> list[CountedFrame]:
        if not self.free_running:
            assert self.gate.acquire(timeout=WAIT)
        assert all(self.unread[slot] == 0 for slot in slots)
        if any(self.state[slot][0].raise_at == self.state[slot][1] for slot in slots):
            raise RuntimeError("boom")
        self.widths.append(len(slots))
        frames = [self._frame(slot) for slot in slots]
        if self.lose_a_frame:
            self.lose_a_frame = False
            return frames[1:]
        return frames

    def _frame(self, slot: int) -> CountedFrame:
        wish, made = self.state[slot]
        self.log.append(("frame", wish.base, made))
        if wish.fail_at == made:
            return CountedFrame(None, "error")
        if wish.empty_end and made == wish.frames:
            return CountedFrame(None, "stop")
        self.state[slot] = (wish, made + 1)
        last = not wish.empty_end and made + 1 == wish.frames
        return CountedFrame(np.full(2, wish.base + made, np.int32), "length" if last else None)

    def free(self, slot: int) -> None:
        if self.break_free:
            self.break_free = False
            raise RuntimeError("the slot would not be freed")
        del self.state[slot]

    def reset(self) -> None:
        self.state = {}


class Collector:
    """A sink that keeps what it gets; `hold` makes it slow, `break_at` makes a chunk fail."""

    def __init__(self, break_at: int | None = None) -> None:
        self.chunks: list[Chunk] = []
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self.hold = threading.Event()
        self.hold.set()
        self.left = False
        self.break_at = break_at

    def chunk(self, chunk: Chunk) -> None:
        assert not self.ended.is_set()
        assert self.hold.wait(WAIT)
        if chunk.index == self.break_at:
            raise OSError("the line is broken")
        self.chunks.append(chunk)
        if chunk.finish is not None:
            self.ended.set()

    def fail(self, error: BaseException) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()

    def cancelled(self) -> bool:
        return self.left

    def wait(self) -> Collector:
        assert self.ended.wait(WAIT)
        return self

    @property
    def values(self) -> list[int]:
        return [int(row[0]) for chunk in self.chunks for row in chunk.codes]


class Meter:
    """A series that remembers."""

    made: dict[tuple[str, str], Meter]
    seen: list[tuple[str, float]]  # the updates, in their order

    def __init__(
        self, name: str, description: str, kind: str, labels: dict[str, str] | None = None, buckets: object = None
    ) -> None:
        assert description and (kind == "histogram") == (buckets is not None)
        self.value = 0.0
        self.observed: list[float] = []
        self.name = name
        self.made[name, (labels or {}).get("reason", "")] = self

    def add(self, amount: float = 1.0) -> None:
        self.value += amount
        self.seen.append((self.name, self.value))

    def set(self, value: float) -> None:
        self.value = value
        self.seen.append((self.name, value))

    def observe(self, value: float) -> None:
        self.observed.append(value)
        self.seen.append((self.name, value))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def source() -> Counter:
    return Counter(slots=2)


@pytest.fixture
def engine(source: Counter) -> Iterator[Engine[Wish]]:
    engine: Engine[Wish] = Engine(source, codebooks=2, schedule=(1, 2, 4), max_queue=3, prefill_chunk=4)
    yield engine
    source.free_running = True
    source.gate.release(1000)
    engine.close()


def submit(engine: Engine[Wish], name: str, wish: Wish) -> Collector:
    collector = Collector()
    engine.submit(name, wish, collector)
    return collector


def test_a_first_chunk_is_sent_before_the_next_frame(
    engine: Engine[Wish], source: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Collector):
        def chunk(self, chunk: Chunk) -> None:
            time.sleep(0.02)
            source.log.append(("sent", 100, chunk.index))
            super().chunk(chunk)

    monkeypatch.setattr("voice_clone.batching.engine.HAND_OVER", WAIT)
    collector = Slow()
    engine.submit("a", Wish(100, 7), collector)
    assert collector.wait().values == list(range(100, 107))
    assert source.log[:4] == [("prefill", 100, 3), ("frame", 100, 0), ("sent", 100, 0), ("frame", 100, 1)]


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


def test_an_exception_in_a_step_costs_the_guilty_stream_alone(engine: Engine[Wish], source: Counter) -> None:
    source.free_running = False
    good = submit(engine, "good", Wish(0, 12))
    bad = submit(engine, "bad", Wish(500, 9, raise_at=4))
    source.gate.release(1000)
    assert isinstance(bad.wait().error, Internal) and bad.values == [500, 501, 502]
    assert good.wait().values == list(range(12))
    alone = submit(engine, "alone", Wish(0, 5, raise_at=0)).wait()
    assert isinstance(alone.error, Internal) and not alone.chunks
    assert submit(engine, "alone", Wish(3, 2)).wait().values == [3, 4]


@pytest.mark.parametrize("how", ["break_free", "lose_a_frame"])
def test_whatever_breaks_the_engine_goes_on(engine: Engine[Wish], source: Counter, how: str) -> None:
    source.free_running = False
    collectors = [submit(engine, str(n), Wish(0, 6)) for n in range(3)]
    setattr(source, how, True)
    source.gate.release(1000)
    for collector in collectors:
        assert isinstance(collector.wait().error, Internal)
    assert submit(engine, "0", Wish(3, 9)).wait().values == list(range(3, 12))
    assert source.state == {}


def test_a_prompt_that_cannot_be_read_costs_its_stream_alone(engine: Engine[Wish], source: Counter) -> None:
    good = submit(engine, "good", Wish(0, 40))
    assert isinstance(submit(engine, "bad", Wish(0, 5, bad_prompt=True)).wait().error, RuntimeError)
    assert good.wait().values == list(range(40))
    until(lambda: source.state == {})


def test_a_newcomer_holds_the_others_up_for_one_chunk_of_its_prompt(engine: Engine[Wish], source: Counter) -> None:
    source.free_running = False
    first = submit(engine, "a", Wish(0, 10, prompt=1))
    until(lambda: ("prefill", 0, 1) in source.log)
    second = submit(engine, "b", Wish(1000, 2, prompt=11))
    source.gate.release(1000)
    first.wait()
    assert second.wait().values == [1000, 1001]
    log = [entry for entry in source.log if entry[0] == "prefill" or entry[1] == 0]
    reads = [place for place, entry in enumerate(log) if entry[:2] == ("prefill", 1000)]
    assert [log[place][2] for place in reads] == [4, 4, 3]
    assert all(after - before > 1 for before, after in pairwise(reads))  # a frame in between


def test_small_prompts_share_a_turn(source: Counter) -> None:
    source.slots, source.free_running = 4, False
    engine: Engine[Wish] = Engine(source, codebooks=2, schedule=(1,), max_queue=9, prefill_chunk=4)
    live = submit(engine, "live", Wish(0, 30, prompt=1))
    until(lambda: ("prefill", 0, 1) in source.log)
    others = [submit(engine, str(n), Wish(1000 * n, 1, prompt=2)) for n in (1, 2, 3)]
    source.gate.release(1000)
    for collector in (live, *others):
        collector.wait()
    reads = [place for place, entry in enumerate(source.log) if entry[0] == "prefill"][1:]
    assert reads[1] == reads[0] + 1 and reads[2] > reads[1] + 1  # 2 + 2 positions, a step, 2 positions
    engine.close()


def test_a_server_that_stops_waits_for_streams_only_so_long(engine: Engine[Wish], source: Counter) -> None:
    source.free_running = False
    short = submit(engine, "short", Wish(0, 3))
    endless, waiting = (submit(engine, name, Wish(0, 10**9)) for name in ("endless", "waiting"))
    draining = threading.Thread(target=engine.drain, args=(2.0,))
    draining.start()
    until(lambda: engine._closing)
    with pytest.raises(Overloaded, match="shutting down"):
        engine.submit("refused", Wish(0, 1), Collector())
    source.free_running = True
    source.gate.release(1)
    assert short.wait().values == [0, 1, 2]
    for collector in (endless, waiting):
        assert isinstance(collector.wait().error, Overloaded)
        assert collector.values == list(range(len(collector.values)))
    draining.join(WAIT)


def test_a_deadline_beyond_all_time_is_none(engine: Engine[Wish]) -> None:
    slow = Collector()
    slow.hold.clear()  # the engine waits for nothing but this deadline
    engine.submit("slow", Wish(0, 1000), slow, time.monotonic() + 1e300)
    until(lambda: engine._by_id["slow"].unsent == MAX_UNSENT)
    time.sleep(0.05)
    slow.hold.set()
    assert slow.wait().values == list(range(1000))


def test_a_deadline_ends_a_live_and_a_waiting_stream(engine: Engine[Wish], source: Counter) -> None:
    soon = time.monotonic() + 1.5
    endless = [Collector() for _ in range(3)]
    for n, collector in enumerate(endless):
        engine.submit(str(n), Wish(0, 10**9), collector, soon)
    for collector in endless:
        assert isinstance(collector.wait().error, DeadlineExceeded)
    assert endless[0].chunks and not endless[2].chunks
    in_time = Collector()
    engine.submit("0", Wish(0, 5), in_time, time.monotonic() + 100)
    assert in_time.wait().values == list(range(5))
    late = Collector()
    engine.submit("late", Wish(0, 5), late, time.monotonic() - 1)
    assert isinstance(late.wait().error, DeadlineExceeded)
    until(lambda: source.state == {})


def test_a_stream_that_nobody_wants_is_freed(engine: Engine[Wish], source: Counter) -> None:
    collectors = [submit(engine, str(n), Wish(0, 10**9)) for n in range(3)]
    collectors[2].left = True
    assert isinstance(collectors[2].wait().error, Cancelled)
    collectors[0].left = True
    assert isinstance(collectors[0].wait().error, Cancelled)
    assert submit(engine, "next", Wish(7, 3)).wait().values == [7, 8, 9]
    assert not collectors[1].ended.is_set()
    collectors[1].left = True
    collectors[1].wait()
    until(lambda: source.state == {})


def test_a_slow_receiver_bounds_what_is_made_for_it(engine: Engine[Wish], source: Counter) -> None:
    slow = Collector()
    slow.hold.clear()
    engine.submit("slow", Wish(0, 10**6), slow)
    bound = sum((1, 2, 4, 4)[:MAX_UNSENT])
    until(lambda: len(source.log) >= bound)
    time.sleep(0.05)
    assert sum(entry[0] == "frame" for entry in source.log) == bound
    slow.hold.set()
    until(lambda: len(slow.chunks) > 20)
    assert slow.values == list(range(len(slow.values)))
    slow.hold.clear()
    engine.cancel("slow")
    slow.hold.set()
    assert isinstance(slow.wait().error, Cancelled)


def test_a_deadline_ends_a_stream_whose_receiver_is_stuck(engine: Engine[Wish], source: Counter) -> None:
    stuck = Collector()
    stuck.hold.clear()
    engine.submit("stuck", Wish(0, 10**6), stuck, time.monotonic() + 0.1)
    until(lambda: "stuck" not in engine._by_id)
    assert source.state == {}
    stuck.hold.set()
    assert isinstance(stuck.wait().error, DeadlineExceeded)


def test_a_receiver_that_fails_ends_its_stream_alone(engine: Engine[Wish], source: Counter) -> None:
    broken = Collector(break_at=1)
    engine.submit("broken", Wish(0, 10**9), broken)
    good = submit(engine, "good", Wish(0, 50))
    assert isinstance(broken.wait().error, OSError) and len(broken.chunks) == 1
    assert good.wait().values == list(range(50))
    until(lambda: source.state == {})


def test_who_sees_that_a_stream_has_ended_sees_the_rest_of_it(source: Counter) -> None:
    Meter.made, Meter.seen = {}, []
    engine: Engine[Wish] = Engine(source, codebooks=2, schedule=(1, 2), max_queue=1, statistics=Statistics("x_", Meter))
    for name, wish in (("a", Wish(0, 4)), ("b", Wish(0, 9, fail_at=3))):
        Meter.seen.clear()
        submit(engine, name, wish).wait()
        until(lambda: ("x_streams_total", 1.0) in Meter.seen)
        before = Meter.seen[: Meter.seen.index(("x_streams_total", 1.0))]
        assert [value for name, value in before if name == "x_live_streams"][-1:] in ([0.0], [])
        assert {"x_frames_total", "x_frame_ms"} <= {name for name, _ in before}
    engine.close()


def test_statistics(source: Counter) -> None:
    Meter.made, Meter.seen = {}, []
    engine: Engine[Wish] = Engine(source, codebooks=2, schedule=(1, 2), max_queue=1, statistics=Statistics("x_", Meter))
    source.free_running = False
    live = [submit(engine, "a", Wish(0, 4))]
    until(lambda: not engine._waiting)
    live.append(submit(engine, "b", Wish(0, 4, empty_end=True)))
    source.gate.release(1)
    until(lambda: not engine._waiting)
    waiting = submit(engine, "c", Wish(0, 10**9))
    with pytest.raises(Overloaded):
        submit(engine, "d", Wish(0, 1))
    until(lambda: (Meter.made["x_live_streams", ""].value, Meter.made["x_waiting_streams", ""].value) == (2, 1))
    source.free_running = True
    source.gate.release(1000)
    for collector in live:
        collector.wait()
    engine.cancel("c")
    waiting.wait()
    submit(engine, "e", Wish(0, 9, fail_at=0)).wait()
    late = Collector()
    engine.submit("f", Wish(0, 9), late, time.monotonic() - 1)
    late.wait()
    submit(engine, "g", Wish(0, 9, refuse=True)).wait()
    until(lambda: Meter.made["x_live_streams", ""].value == 0)
    engine.close()
    reasons = {reason: int(meter.value) for (name, reason), meter in Meter.made.items() if name == "x_streams_total"}
    once = ("length", "stop", "cancelled", "overloaded", "internal", "deadline_exceeded", "invalid_argument")
    assert reasons == {**dict.fromkeys(once, 1), "runaway": 0}
    made = Meter.made["x_frames_total", ""].value
    assert made >= 8
    for name in ("queue_ms", "prefill_ms", "first_frame_ms", "frame_ms", "chunk_gap_ms"):
        observed = Meter.made[f"x_{name}", ""].observed
        assert 2 <= len(observed) <= 3 and all(0 <= value < 1e3 * WAIT for value in observed)  # c may have had frames


def test_a_storm(source: Counter) -> None:
    """Ends of every kind at random: each stream has exactly one, none is mixed up, and nothing is left."""
    rng = random.Random(5)
    source.slots = 4
    engine: Engine[Wish] = Engine(source, codebooks=2, schedule=(1, 2, 4), max_queue=20, prefill_chunk=4)
    jobs: list[tuple[Wish, Collector]] = []
    for n in range(500):
        kind = rng.choice(("good", "good", "good", "cancel", "deadline", "left", "fail", "raise", "refuse", "broken"))
        frames = rng.randint(1, 60)
        wish = Wish(
            1000 * n,
            frames,
            fail_at=rng.randrange(frames) if kind == "fail" else None,
            raise_at=rng.randrange(frames) if kind == "raise" else None,
            refuse=kind == "refuse",
            prompt=rng.randint(1, 15),
        )
        collector = Collector(break_at=rng.randint(0, 3) if kind == "broken" else None)
        deadline = time.monotonic() + rng.random() * 0.01 if kind == "deadline" else None
        while True:
            try:
                engine.submit(str(n), wish, collector, deadline)
                break
            except Overloaded:
                time.sleep(0.001)
        collector.left = kind == "left"
        if kind == "cancel":
            engine.cancel(str(n))
        if rng.random() < 0.01:
            source.lose_a_frame = True
        jobs.append((wish, collector))
    engine.close()
    done = 0
    for wish, collector in jobs:
        assert collector.ended.is_set()
        assert collector.values == list(range(wish.base, wish.base + len(collector.values)))
        if collector.error is None:
            assert len(collector.values) == wish.frames
            done += 1
    assert done > 100 and source.state == {} and not engine._by_id


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
