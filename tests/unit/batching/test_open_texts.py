"""Streams whose text follows: they wait for it in their slots, without a step and without a busy loop."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.support.doubles.clock import Clock
from tests.support.doubles.counted_frames import Collector, Counter, Wish
from tests.support.waiting import until
from voice_clone.batching.engine import Engine
from voice_clone.batching.source import Frame, PayloadForm
from voice_clone.batching.stream import FLUSH_LEAD, Stream
from voice_clone.errors import Cancelled, DeadlineExceeded, Internal, Overloaded
from voice_clone.turns import Caller

FRAME = 0.08


def submit(engine: Engine[Wish], name: str, wish: Wish, deadline: float | None = None) -> Collector:
    collector = Collector()
    engine.submit(name, wish, collector, deadline, text_open=wish.text is not None)
    return collector


def starved(engine: Engine[Wish], name: str) -> bool:
    view = engine.look(name)
    return view is not None and view.starved_since is not None


def test_a_stream_makes_the_frames_that_its_text_allows(source: Counter, engine: Engine[Wish]) -> None:
    collector = submit(engine, "a", Wish(100, 9, text=2))
    until(lambda: starved(engine, "a"))
    assert engine.look("a").frames == 2  # type: ignore[union-attr]
    assert engine.extend("a", 3, False)
    until(lambda: starved(engine, "a") and engine.look("a").frames == 5)  # type: ignore[union-attr]
    assert engine.extend("a", None, True)
    assert collector.wait().values == [*range(100, 109)]
    assert [len(chunk.payload) for chunk in collector.chunks] == [1, 2, 4, 2]  # the schedule, whatever the text did
    assert not engine.extend("a", 1, False)
    assert engine.look("a") is None


def test_a_prompt_without_text_waits_too(source: Counter, engine: Engine[Wish]) -> None:
    collector = submit(engine, "a", Wish(100, 2, text=-1))
    until(lambda: starved(engine, "a"))
    assert source.log == []
    engine.extend("a", 2, False)
    until(lambda: source.log.count(("frame", 100, 0)) == 1)
    engine.extend("a", None, True)
    assert collector.wait().values == [100, 101]


def test_nothing_is_done_while_streams_wait(source: Counter, engine: Engine[Wish]) -> None:
    submit(engine, "a", Wish(100, 9, text=1))
    submit(engine, "b", Wish(200, 9, text=-1))
    until(lambda: starved(engine, "a") and starved(engine, "b"))

    def quiet() -> bool:
        asked = source.questions
        time.sleep(0.3)
        return source.questions == asked

    until(quiet)
    engine.cancel("a")
    engine.cancel("b")


def test_text_that_comes_before_the_slot_is_not_lost(source: Counter, engine: Engine[Wish]) -> None:
    source.free_running = False
    others = [submit(engine, name, Wish(500, 1)) for name in ("x", "y")]
    collector = submit(engine, "a", Wish(100, 4, text=1))
    assert engine.extend("a", 1, False) and engine.extend("a", None, True)
    source.free_running = True
    source.gate.release(100)
    assert collector.wait().values == [100, 101, 102, 103]
    assert all(other.wait().error is None for other in others)


def test_other_streams_go_on(source: Counter, engine: Engine[Wish]) -> None:
    waiting = submit(engine, "a", Wish(100, 3, text=1))
    assert submit(engine, "b", Wish(200, 30)).wait().values == [*range(200, 230)]
    assert starved(engine, "a")
    engine.extend("a", None, True)
    assert waiting.wait().values == [100, 101, 102]


@pytest.mark.parametrize("how", ["cancel", "left", "error", "bad text"])
def test_a_stream_that_waits_can_end(source: Counter, engine: Engine[Wish], how: str) -> None:
    collector = submit(engine, "a", Wish(100, 3, text=1))
    until(lambda: starved(engine, "a"))
    if how == "cancel":
        engine.cancel("a")
    elif how == "error":
        engine.cancel("a", Overloaded("too much"))
    elif how == "bad text":
        engine.extend("a", 0, False)
    collector.left = how == "left"
    kinds = {"error": Overloaded, "bad text": RuntimeError}
    assert isinstance(collector.wait().error, kinds.get(how, Cancelled))
    assert submit(engine, "a", Wish(300, 2)).wait().values == [300, 301]  # slot and id are free


def test_a_deadline_ends_a_stream_that_waits(source: Counter) -> None:
    clock = Clock()
    engine: Engine[Wish] = Engine(source, schedule=(1,), max_queue=3, clock=clock)
    collector = submit(engine, "a", Wish(100, 3, text=1), clock.now + 0.2)
    until(lambda: starved(engine, "a"))
    assert not collector.ended.is_set()
    clock.now += 0.3
    assert isinstance(collector.wait().error, DeadlineExceeded)
    assert submit(engine, "a", Wish(300, 2)).wait().values == [300, 301]
    engine.close()


def test_close_ends_streams_whose_text_is_open(source: Counter) -> None:
    engine: Engine[Wish] = Engine(source, schedule=(1,), max_queue=3)
    left_open, closed = submit(engine, "a", Wish(100, 9, text=1)), submit(engine, "b", Wish(200, 3, text=1))
    until(lambda: starved(engine, "a") and starved(engine, "b"))
    engine.extend("b", None, True)
    engine.close()
    assert isinstance(left_open.wait().error, Overloaded)
    assert closed.wait().values == [200, 201, 202]


def test_a_failed_engine_forgets_waiting_streams(source: Counter, engine: Engine[Wish]) -> None:
    waiting = submit(engine, "a", Wish(100, 9, text=1))
    until(lambda: starved(engine, "a"))
    source.lose_a_frame = True
    submit(engine, "b", Wish(200, 9)).wait()
    assert isinstance(waiting.wait().error, Internal)
    assert submit(engine, "a", Wish(300, 1)).wait().values == [300]


class TestPace:
    """Time in which a stream waits for text counts nowhere else."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def stream(self, clock: Clock) -> Stream[Wish]:
        sink = Collector()
        stream = Stream("a", Wish(0, 9), sink, (1, 4), PayloadForm(2), FRAME, None, clock, text_open=True)
        stream.started = clock.now
        return stream

    def frame(self, stream: Stream[Wish], clock: Clock, seconds: float = 0.01) -> object:
        clock.now += seconds
        return next(iter(stream.add(Frame(np.zeros(2, np.int32), None))), None)

    def pause(self, stream: Stream[Wish], clock: Clock, seconds: float) -> None:
        stream.set_starved(True, clock.now)
        clock.now += seconds
        stream.set_starved(False, clock.now)

    def test_times(self, stream: Stream[Wish], clock: Clock) -> None:
        self.pause(stream, clock, 5.0)
        clock.now += 0.02
        stream.prefilled = clock.now
        self.frame(stream, clock)
        self.pause(stream, clock, 7.0)
        for _ in range(4):
            self.frame(stream, clock)
        timing = stream.timing(clock.now)
        assert timing.prefill == pytest.approx(20)
        assert timing.first_frame == pytest.approx(30)
        assert timing.first_chunk == timing.first_frame  # it has one frame
        assert timing.generate == pytest.approx(50)
        assert timing.text == pytest.approx(12_000)
        assert timing.gap == pytest.approx(40)  # chunk 1 came after four frames

    def test_the_first_chunk_has_its_own_time(self, stream: Stream[Wish], clock: Clock) -> None:
        stream.schedule = (2, 4)
        stream.prefilled = clock.now
        assert stream.timing(clock.now + 0.03).first_chunk == pytest.approx(30), "it goes on"
        self.frame(stream, clock)
        self.pause(stream, clock, 7.0)
        self.frame(stream, clock, 0.02)
        for _ in range(4):
            self.frame(stream, clock)
        timing = stream.timing(clock.now)
        assert (timing.first_frame, timing.first_chunk) == (pytest.approx(10), pytest.approx(30))

    def test_lead(self, stream: Stream[Wish], clock: Clock) -> None:
        stream.prefilled = clock.now
        self.frame(stream, clock)
        self.pause(stream, clock, 7.0)
        assert stream.lead(clock.now) is None  # playback ran dry: no haste can help
        for _ in range(4):
            self.frame(stream, clock)
        assert stream.lead(clock.now) == pytest.approx(4 * FRAME)

    def test_a_pause_is_no_slow_frame(self, stream: Stream[Wish], clock: Clock) -> None:
        """The frame after a short pause is not sent early: the engine is as fast as before."""
        stream.prefilled = clock.now
        for _ in range(5):
            self.frame(stream, clock, 0.001)
        self.pause(stream, clock, 0.1)
        assert self.frame(stream, clock, 0.001) is None

    def test_a_chunk_goes_out_half_full_before_its_listener_hears_the_gap(
        self, stream: Stream[Wish], clock: Clock
    ) -> None:
        stream.prefilled = clock.now
        for _ in range(5):
            self.frame(stream, clock, 0.001)
        sent = clock.now
        assert self.frame(stream, clock, 0.001) is None
        assert stream.flush_at is None
        stream.set_starved(True, clock.now)
        assert stream.flush_at == pytest.approx(sent + 5 * FRAME - FLUSH_LEAD, abs=0.01)
        assert len(stream.flush().payload) == 1
        assert stream.flush_at is None

    def test_a_schedule_that_is_kept_has_no_half_full_chunk(self, clock: Clock) -> None:
        sink = Collector()
        stream: Stream[Wish] = Stream("a", Wish(0, 9), sink, (4,), PayloadForm(2), 0.0, None, clock, text_open=True)
        stream.started = stream.prefilled = clock.now
        self.frame(stream, clock)
        stream.set_starved(True, clock.now)
        assert stream.flush_at is None


def test_the_engine_sends_a_half_full_chunk(source: Counter) -> None:
    engine: Engine[Wish] = Engine(source, schedule=(8,), max_queue=3, frame_seconds=FRAME)
    try:
        collector = submit(engine, "a", Wish(100, 9, text=3))
        until(lambda: collector.values == [100, 101, 102])
        engine.extend("a", None, True)
        assert collector.wait().values == [*range(100, 109)]
    finally:
        engine.close()


def of(engine: Engine[Wish], name: str, wish: Wish, caller: str, deadline: float | None = None) -> Collector:
    collector = Collector()
    engine.submit(name, wish, collector, deadline, text_open=wish.text is not None, caller=Caller(caller))
    return collector


def test_a_slot_whose_stream_waits_for_text_goes_to_a_caller_that_has_none(
    source: Counter, engine: Engine[Wish]
) -> None:
    texts = [of(engine, str(number), Wish(100 * number, 5, text=1 - number), f"c {number}") for number in (1, 2)]
    until(lambda: starved(engine, "1") and starved(engine, "2"))
    assert of(engine, "mine", Wish(500, 3), "me").wait().values == [500, 501, 502]
    more = of(engine, "3", Wish(300, 4, text=2), "c 3")
    until(lambda: starved(engine, "3"))
    for name in ("3", "2", "1"):
        engine.extend(name, 1, False)
        engine.extend(name, None, True)
    assert more.wait().values == [*range(300, 304)]
    assert [each.wait().values for each in texts] == [[*range(100, 105)], [*range(200, 205)]]
    assert not engine.parked and not engine.turns.names()


def test_a_caller_never_takes_its_own_slots(source: Counter, engine: Engine[Wish]) -> None:
    texts = [of(engine, str(number), Wish(100 * number, 3, text=1), "c") for number in (1, 2)]
    until(lambda: starved(engine, "1") and starved(engine, "2"))
    other = of(engine, "other", Wish(300, 3), "c")
    time.sleep(0.05)
    assert not other.chunks
    engine.extend("1", None, True)
    assert texts[0].wait().values and other.wait().values == [300, 301, 302]


@pytest.mark.parametrize("how", ["cancel", "deadline", "close", "failure", "bad text"])
def test_a_stream_without_a_slot_can_end(source: Counter, how: str) -> None:
    clock = Clock()
    engine: Engine[Wish] = Engine(source, schedule=(1,), max_queue=3, clock=clock)
    parked = [of(engine, str(n), Wish(100 * n, 9, text=1), "a", clock.now + 5) for n in (1, 2)]
    until(lambda: starved(engine, "1") and starved(engine, "2"))
    others = [of(engine, f"other {n}", Wish(500, 9, text=1), f"b {n}") for n in (1, 2)]
    until(lambda: starved(engine, "other 1") and starved(engine, "other 2") and len(engine.parked) == 2)
    if how == "cancel":
        engine.cancel("1")
        engine.cancel("2", Overloaded("too much"))
    elif how == "deadline":
        clock.now += 6
    elif how == "failure":
        source.lose_a_frame = True
        engine.extend("other 1", 2, False)
    elif how == "bad text":
        engine.extend("1", 0, False)
        engine.extend("2", 0, False)
    if how == "close":
        engine.close()
    kind = {"deadline": DeadlineExceeded, "close": Overloaded, "failure": Internal, "bad text": RuntimeError}
    assert isinstance(parked[0].wait().error, kind.get(how, Cancelled))
    parked[1].wait()
    assert not {"1", "2"} & {stream.id for stream in engine.parked}
    if how != "close":
        assert of(engine, "1", Wish(300, 2), "c").wait().values == [300, 301]
        for n in (1, 2):
            engine.cancel(f"other {n}")
        engine.close()
    assert all(each.wait().error for each in others)


def test_half_a_chunk_of_a_stream_without_a_slot_goes_out(source: Counter) -> None:
    engine: Engine[Wish] = Engine(source, schedule=(8,), max_queue=3, frame_seconds=FRAME)
    texts = [of(engine, str(n), Wish(100 * n, 9, text=2), "a") for n in (1, 2)]
    until(lambda: all(each.chunks for each in texts))
    others = [of(engine, f"other {n}", Wish(500, 9, text=1), f"b {n}") for n in (1, 2)]
    until(lambda: len(engine.parked) == 2)
    for n in (1, 2):
        engine.extend(str(n), None, True)
    assert [each.wait().values for each in texts] == [[*range(100, 109)], [*range(200, 209)]]
    for n in (1, 2):
        engine.cancel(f"other {n}")
    assert all(each.wait().error for each in others)
    engine.close()
