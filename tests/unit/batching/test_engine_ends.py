"""How the engine's streams end early: cancelled, late, unwanted, failed, shut down; each alone."""

from __future__ import annotations

import random
import threading
import time

import pytest

from tests.support.doubles.clock import Clock
from tests.support.doubles.counted_frames import WAIT, Collector, Counter, Wish, submit
from tests.support.waiting import until
from voice_clone.batching.engine import Engine
from voice_clone.batching.stream import MAX_UNSENT
from voice_clone.errors import Cancelled, DeadlineExceeded, Internal, InvalidArgument, Overloaded


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


def test_an_abandoned_stream_is_freed(engine: Engine[Wish], source: Counter) -> None:
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


def test_a_deadline_beyond_all_time_is_none(engine: Engine[Wish]) -> None:
    slow = Collector()
    slow.hold.clear()  # the engine waits for nothing but this deadline
    engine.submit("slow", Wish(0, 1000), slow, time.monotonic() + 1e300)
    until(lambda: engine.streams["slow"].unsent == MAX_UNSENT)
    time.sleep(0.05)
    slow.hold.set()
    assert slow.wait().values == list(range(1000))


def test_a_deadline_ends_a_live_and_a_waiting_stream(source: Counter) -> None:
    clock = Clock()
    engine: Engine[Wish] = Engine(source, schedule=(1, 2, 4), max_queue=3, clock=clock)
    endless = [Collector() for _ in range(3)]
    for n, collector in enumerate(endless):
        engine.submit(str(n), Wish(0, 10**9), collector, clock.now + 1.5)
    until(lambda: endless[0].chunks)
    assert not any(collector.ended.is_set() for collector in endless)
    clock.now += 2
    for collector in endless:
        assert isinstance(collector.wait().error, DeadlineExceeded)
    assert not endless[2].chunks
    in_time = Collector()
    engine.submit("0", Wish(0, 5), in_time, clock.now + 100)
    assert in_time.wait().values == list(range(5))
    late = Collector()
    engine.submit("late", Wish(0, 5), late, clock.now - 1)
    assert isinstance(late.wait().error, DeadlineExceeded)
    engine.close()
    assert source.state == {}


def test_a_deadline_ends_a_stream_whose_receiver_is_stuck(engine: Engine[Wish], source: Counter) -> None:
    stuck = Collector()
    stuck.hold.clear()
    engine.submit("stuck", Wish(0, 10**6), stuck, time.monotonic() + 0.1)
    until(lambda: "stuck" not in engine.streams)
    assert source.state == {}
    stuck.hold.set()
    assert isinstance(stuck.wait().error, DeadlineExceeded)


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


def test_a_receiver_that_fails_ends_its_stream_alone(engine: Engine[Wish], source: Counter) -> None:
    broken = Collector(break_at=1)
    engine.submit("broken", Wish(0, 10**9), broken)
    good = submit(engine, "good", Wish(0, 50))
    assert isinstance(broken.wait().error, OSError) and len(broken.chunks) == 1
    assert good.wait().values == list(range(50))
    until(lambda: source.state == {})


def test_a_sink_that_cannot_say_whether_it_is_wanted(engine: Engine[Wish]) -> None:
    class Unsure(Collector):
        asked = 0

        def cancelled(self) -> bool:
            self.asked += 1
            raise RuntimeError("the server does not answer")

    unsure = Unsure()
    engine.submit("unsure", Wish(0, 10**9), unsure)
    until(lambda: unsure.asked > 0)
    assert submit(engine, "other", Wish(0, 50)).wait().values == list(range(50))
    assert engine.cancel("unsure"), "it has ended by itself"
    heard = unsure.wait().values
    assert isinstance(unsure.error, Cancelled) and heard == list(range(len(heard)))
    assert submit(engine, "later", Wish(7, 9)).wait().values == list(range(7, 16))


def test_a_receiver_that_takes_not_even_the_failure_frees_its_slot(engine: Engine[Wish], source: Counter) -> None:
    class Broken(Collector):
        def fail(self, error: BaseException) -> None:
            raise OSError("the line is still broken")

    engine.submit("broken", Wish(0, 10**9), Broken(break_at=1))
    until(lambda: source.state == {})
    assert submit(engine, "later", Wish(7, 9)).wait().values == list(range(7, 16))


def test_a_server_that_stops_waits_for_streams_only_so_long(
    engine: Engine[Wish], source: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.free_running = False
    short = submit(engine, "short", Wish(0, 3))
    endless, waiting = (submit(engine, name, Wish(0, 10**9)) for name in ("endless", "waiting"))
    join = engine._thread.join

    def as_long_as_the_short_one(seconds: float | None = None) -> None:
        assert seconds in (2.0, None)
        join() if seconds is None else short.wait()

    monkeypatch.setattr(engine._thread, "join", as_long_as_the_short_one)
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
    assert not draining.is_alive()


def test_close_finishes_what_runs_and_refuses_what_comes() -> None:
    source = Counter(slots=1)
    engine: Engine[Wish] = Engine(source, schedule=(2,), max_queue=8)
    collectors = [submit(engine, str(n), Wish(n, 5)) for n in range(3)]
    engine.close()
    for n, collector in enumerate(collectors):
        assert collector.wait().values == list(range(n, n + 5))
    with pytest.raises(Overloaded, match="shutting down"):
        submit(engine, "late", Wish(0, 1))
    assert source.state == {}


def test_a_storm(source: Counter) -> None:
    """Ends of every kind at random: each stream has exactly one, none is mixed up, and nothing is left."""
    rng = random.Random(5)
    source.slots = 4
    engine: Engine[Wish] = Engine(source, schedule=(1, 2, 4), max_queue=20, prefill_chunk=4)
    jobs: list[tuple[str, Wish, Collector]] = []
    breakdowns = (150, 350, 550)  # each may end all streams that there are: 4 live, 20 waiting
    for n in range(700):
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
        if n in breakdowns:
            source.lose_a_frame = True
        jobs.append((kind, wish, collector))
    engine.close()
    failed = 0  # good streams
    for kind, wish, collector in jobs:
        assert collector.ended.is_set()
        assert collector.values == list(range(wish.base, wish.base + len(collector.values)))
        if collector.error is None:
            assert len(collector.values) == wish.frames
        elif kind == "good":
            assert "failed to make this stream" in str(collector.error)
            failed += 1
    good = sum(kind == "good" for kind, _, _ in jobs)
    assert 0 < failed <= 24 * len(breakdowns) < good / 2
    assert source.state == {} and not engine.streams
