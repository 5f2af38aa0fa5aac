"""Which chunks are decoded together."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from voice_clone.batching.expected import ARRIVAL
from voice_clone.codec.chunk import CodecChunk
from voice_clone.codec.worker import BATCH_LEAD, EXPECTED, FIRST_CHUNK_LEAD, RECENT, ChunkQueue, Entry
from voice_clone.turns import Caller, Urgency

NO_TICKET = cast(Any, None)


def entry(stream: str, index: int, frames: int, arrived: float, caller: str = "", urgency: Urgency = "next") -> Entry:
    payload = np.zeros((frames, 2), np.int32)
    chunk = CodecChunk(stream, index, payload, payload[:0], final=False, arrived=arrived)
    return Entry(chunk, NO_TICKET, Caller(caller, urgency))


@pytest.mark.parametrize(
    ("ragged", "batches"),
    [
        (False, ["first 1", "second 4 fifth 4", "third 12", "fourth 2", "second 1"]),
        (True, ["first 1", "second 4 fourth 2 fifth 4", "third 12 second 1"]),
    ],
)
def test_no_chunk_waits_for_a_longer_one(ragged: bool, batches: list[str]) -> None:
    """The most urgent one says how long they may be: a first chunk of one frame is never padded to many."""
    waiting = ChunkQueue(24_000, clock=lambda: 10.0)
    waiting.put(entry("first", 0, 1, 9.9))
    for stream, frames, due in (("second", 4, 10.0), ("third", 12, 10.1), ("fourth", 2, 10.2), ("fifth", 4, 10.3)):
        waiting.put(entry(stream, 3, frames, due))
    waiting.put(entry("second", 4, 1, 10.4))
    taken = []
    while batch := waiting.take(8, ragged):
        taken.append(" ".join(f"{each.chunk.stream_id} {each.frames}" for each in batch))
    assert taken == batches and not len(waiting)


@pytest.mark.parametrize(("ragged", "sizes"), [(False, [1, 1, 1, 1, 2]), (True, [3, 1, 2])])
def test_on_a_cpu_chunks_of_several_callers_are_decoded_one_by_one(ragged: bool, sizes: list[int]) -> None:
    """A first chunk of another caller would wait for the whole batch."""
    now = [10.0]
    waiting = ChunkQueue(24_000, clock=lambda: now[0])
    for number in range(3):
        waiting.put(entry(f"many {number}", 1, 12, 10.0, "many"))
    waiting.put(entry("few", 0, 1 if not ragged else 13, 20.0, "few"))
    taken = [len(waiting.take(8, ragged)) for _ in range(4 if not ragged else 2)]
    now[0] += RECENT + 1  # without a chunk of the other one
    for number in range(2):
        waiting.put(entry(f"many {number}", 2, 12, 10.0, "many"))
    taken.append(len(waiting.take(8, ragged)))
    assert taken == sizes


@pytest.mark.parametrize("ragged", [False, True])
def test_batch_work_waits_for_a_first_chunk_that_is_expected(ragged: bool) -> None:
    now = [10.0]
    waiting = ChunkQueue(24_000, clock=lambda: now[0])
    for number in range(3):
        waiting.put(entry(f"job {number}", 1, 12, now[0], urgency="batch"))
    waiting.expect("mine")
    assert not waiting.take(8, ragged) and 0.0 < waiting.ready_in() <= EXPECTED
    waiting.put(entry("other", 3, 4, now[0]))
    assert [each.chunk.stream_id for each in waiting.take(8, ragged)] == ["other"], "it has a listener"
    assert not waiting.take(8, ragged)
    waiting.put(entry("mine", 0, 1, now[0], urgency="interactive"))
    assert [each.chunk.stream_id for each in waiting.take(8, ragged)] == ["mine"]
    assert not waiting.take(8, ragged) and waiting.ready_in() <= ARRIVAL, "the first audio is on its way"
    now[0] += ARRIVAL
    assert waiting.ready_in() == 0.0 and len(waiting.take(8, ragged)) == (3 if ragged else 1)


def test_batch_work_waits_not_long_for_a_chunk_that_does_not_come() -> None:
    now = [10.0]
    waiting = ChunkQueue(24_000, clock=lambda: now[0])
    waiting.put(entry("job", 1, 12, now[0], urgency="batch"))
    waiting.expect("mine")
    now[0] += EXPECTED
    assert waiting.take(8)


def test_batch_work_goes_last_but_is_not_starved() -> None:
    """Chunks that come all the time, each more urgent than all before it, hold it up for some seconds; so do streams
    that are expected all the time, for less."""
    now, taken = [10.0], list[str]()
    waiting = ChunkQueue(24_000, clock=lambda: now[0])
    waiting.put(entry("job", 0, 1, now[0], urgency="batch"))
    while "job" not in taken:
        waiting.put(entry(f"new {now[0]}", 0, 1, now[0], urgency="interactive"))
        waiting.expect(f"next {now[0]}")
        taken += [each.chunk.stream_id for each in waiting.take(1)]
        now[0] += 0.25
    assert len(taken) > 1 and now[0] - 10.0 <= BATCH_LEAD + FIRST_CHUNK_LEAD + 0.5
    began, waiting = now[0], ChunkQueue(24_000, clock=lambda: now[0])
    waiting.put(entry("job", 1, 1, began, urgency="batch"))
    waiting.expect("other")
    while not waiting.take(1):
        now[0] += 0.1
        waiting.expect(f"other {now[0]}")
    assert EXPECTED < now[0] - began <= BATCH_LEAD + 0.2


@pytest.mark.parametrize("listener", ["none", "expected", "recent", "gone"])
def test_chunks_of_batch_work_are_decoded_one_by_one_beside_a_listener(listener: str) -> None:
    """On a CPU, a listener who comes waits for one of them at most. Without a listener a batch is as large as it may
    be."""
    now = [10.0]
    waiting = ChunkQueue(24_000, clock=lambda: now[0])
    if listener == "expected":
        waiting.expect("mine")
        now[0] += EXPECTED / 2
        waiting.put(entry("old job", 1, 12, now[0] - BATCH_LEAD, urgency="batch"))
    if listener in ("recent", "gone"):
        waiting.put(entry("mine", 0, 12, now[0], "me", "interactive"))
        assert len(waiting.take(8)) == 1
    if listener == "gone":
        now[0] += RECENT + 1
    for number in range(3):
        waiting.put(entry(f"job {number}", 1, 12, now[0], f"job {number}", urgency="batch"))
    assert len(waiting.take(8)) == (1 if listener in ("recent", "expected") else 3)


def test_batch_work_that_is_overdue_goes_one_at_a_time_before_a_listener() -> None:
    now, taken = [10.0], list[str]()
    waiting = ChunkQueue(24_000, clock=lambda: now[0])
    waiting.record_sent("live", 3 * 24_000)
    for number in range(9):
        waiting.put(entry(f"job {number}", 1, 4, now[0], "jobs", "batch"))
    now[0] += 2.8
    waiting.put(entry("live", 1, 4, now[0], "me"))
    waiting.put(entry("new", 0, 1, now[0] - 0.1, "new", "interactive"))
    while batch := waiting.take(1):
        taken += [each.chunk.stream_id for each in batch]
    assert taken == ["new", "job 0", "live", *(f"job {number}" for number in range(1, 9))]


def test_batch_work_goes_on_while_listeners_have_audio() -> None:
    now = [10.0]
    waiting = ChunkQueue(24_000, clock=lambda: now[0])
    waiting.record_sent("live", 9 * 24_000)
    waiting.put(entry("live", 1, 4, now[0], "me"))
    for number in range(3):
        waiting.put(entry(f"job {number}", 1, 4, now[0] + number, "jobs", "batch"))
    assert [waiting.take(1)[0].chunk.stream_id for _ in range(4)] == ["job 0", "job 1", "job 2", "live"]
