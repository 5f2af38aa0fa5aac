"""What the engine's streams get: their chunks, their turns, and a place in the queue."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from unittest import mock

import pytest

from tests.support.doubles.counted_frames import WAIT, Collector, Counter, Wish, submit
from tests.support.waiting import until
from voice_clone.batching.engine import MAX_UNSENT, Engine
from voice_clone.batching.stream import FrameChunk
from voice_clone.errors import Cancelled, InvalidArgument, Overloaded
from voice_clone.gpu import start_thread


def test_a_first_chunk_is_sent_before_the_next_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the host makes the frames."""
    source = Counter(slots=1)

    class Slow(Collector):
        def chunk(self, chunk: FrameChunk) -> None:
            time.sleep(0.02)
            source.log.append(("sent", 100, chunk.index))
            super().chunk(chunk)

    monkeypatch.setattr("voice_clone.batching.engine.HAND_OVER", WAIT)
    engine: Engine[Wish] = Engine(source, (1, 2, 4), max_queue=3)
    collector = Slow()
    engine.submit("a", Wish(100, 7), collector)
    assert collector.wait().values == list(range(100, 107))
    assert source.log[:4] == [("prefill", 100, 3), ("frame", 100, 0), ("sent", 100, 0), ("frame", 100, 1)]
    engine.close()


def test_a_gpu_waits_for_no_first_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes the next frame meanwhile, and the outbox has time to send."""
    monkeypatch.setattr("voice_clone.batching.engine.HAND_OVER", 10 * WAIT)
    source, collector = Counter(slots=1, ahead=True), Collector()
    engine: Engine[Wish] = Engine(source, (1, 2, 4), max_queue=3)
    collector.hold.clear()
    engine.submit("a", Wish(100, 7), collector)
    until(lambda: ("frame", 100, 6) in source.log)
    collector.hold.set()
    assert collector.wait().values == list(range(100, 107))
    engine.close()


@pytest.mark.parametrize("frames", [1, 2, 3, 7, 8, 30])
@pytest.mark.parametrize("empty_end", [False, True])
def test_chunks_follow_the_schedule_and_lose_nothing(engine: Engine[Wish], frames: int, empty_end: bool) -> None:
    got = submit(engine, "a", Wish(100, frames, empty_end)).wait()
    assert got.values == list(range(100, 100 + frames))
    assert [chunk.index for chunk in got.chunks] == list(range(len(got.chunks)))
    sizes = [len(chunk.payload) for chunk in got.chunks]
    assert sizes[:-1] == ([1, 2] + [4] * len(sizes))[: len(sizes) - 1]
    assert [chunk.finish for chunk in got.chunks[:-1]] == [None] * (len(sizes) - 1)
    assert got.chunks[-1].finish == ("stop" if empty_end else "length")
    assert got.chunks[-1].frames == frames
    assert all(chunk.payload.shape == (size, 2) for chunk, size in zip(got.chunks, sizes, strict=True))


def test_streams_share_steps_and_the_rest_waits(engine: Engine[Wish], source: Counter) -> None:
    source.free_running = False
    collectors = [submit(engine, str(n), Wish(1000 * n, 6)) for n in range(3)]
    source.gate.release(1000)
    for n, collector in enumerate(collectors):
        assert collector.wait().values == list(range(1000 * n, 1000 * n + 6))
    assert max(source.widths) == 2


def test_a_full_queue_refuses_at_once(engine: Engine[Wish], source: Counter) -> None:
    source.free_running = False
    collectors = [submit(engine, f"live{n}", Wish(0, 1000)) for n in range(2)]
    until(lambda: source.gate.release() or not engine.turns)  # both have slots: a step may begin between them
    collectors += [submit(engine, f"waiting{n}", Wish(0, 3)) for n in range(3)]
    with pytest.raises(Overloaded, match="3 streams are waiting"):
        submit(engine, "one too many", Wish(0, 3))
    source.gate.release(2000)
    for collector in collectors:
        assert collector.wait().error is None
    assert submit(engine, "later", Wish(7, 1)).wait().values == [7]


def test_an_id_names_one_live_stream(engine: Engine[Wish], source: Counter) -> None:
    source.free_running = False
    first = submit(engine, "same", Wish(0, 2))
    with pytest.raises(InvalidArgument, match="stream_id"):
        submit(engine, "same", Wish(0, 2))
    source.gate.release(10)
    first.wait()


def test_a_new_stream_delays_the_others_by_one_chunk_of_its_prompt(engine: Engine[Wish], source: Counter) -> None:
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
    engine: Engine[Wish] = Engine(source, schedule=(1,), max_queue=9, prefill_chunk=4)
    live = submit(engine, "live", Wish(0, 30, prompt=1))
    until(lambda: ("prefill", 0, 1) in source.log)
    others = [submit(engine, str(n), Wish(1000 * n, 1, prompt=2)) for n in (1, 2, 3)]
    source.gate.release(1000)
    for collector in (live, *others):
        collector.wait()
    reads = [place for place, entry in enumerate(source.log) if entry[0] == "prefill"][1:]
    assert reads[1] == reads[0] + 1 and reads[2] > reads[1] + 1  # 2 + 2 positions, a step, 2 positions
    engine.close()


def test_a_slow_receiver_bounds_what_is_made_for_it(engine: Engine[Wish], source: Counter) -> None:
    slow = Collector()
    slow.hold.clear()
    engine.submit("slow", Wish(0, 10**6), slow)
    bound = sum((1, 2, 4, 4)[:MAX_UNSENT]) + source.ahead

    def frames() -> int:
        return sum(entry[0] == "frame" for entry in list(source.log))

    until(lambda: frames() >= bound)
    time.sleep(0.05)
    assert frames() == bound
    slow.hold.set()
    until(lambda: len(slow.chunks) > 20)
    assert slow.values == list(range(len(slow.values)))
    slow.hold.clear()
    engine.cancel("slow")
    slow.hold.set()
    assert isinstance(slow.wait().error, Cancelled)


def test_it_warms_up_itself_and_first() -> None:
    done: list[tuple[str, threading.Thread]] = []
    thread = start_thread(
        "server",
        lambda: done.append(("served", threading.current_thread())),
        lambda: done.append(("warm", threading.current_thread())),
    )
    assert done[0] == ("warm", thread) and thread.name == "server"
    thread.join(10.0)
    assert done == [("warm", thread), ("served", thread)]


def test_one_that_fails_later_ends_the_process() -> None:
    """Else the model would look ready, and its requests would wait for ever."""

    def fail() -> None:
        raise AttributeError("a source without slots")

    with mock.patch("voice_clone.gpu.end_process") as end:
        start_thread("server", fail).join(10.0)
    end.assert_called_once_with()


def test_one_that_cannot_warm_up_does_not_serve() -> None:
    served: list[bool] = []

    def fail() -> None:
        raise MemoryError("no room for the graphs")

    before = threading.active_count()
    with pytest.raises(MemoryError, match="no room"):
        start_thread("server", lambda: served.append(True), fail)
    for thread in threading.enumerate():
        if thread.name == "server":
            thread.join(10.0)
    assert not served and threading.active_count() <= before
