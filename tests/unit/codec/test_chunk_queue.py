"""Which chunks are decoded together."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from voice_clone.codec.chunk import CodecChunk
from voice_clone.codec.worker import RECENT, ChunkQueue, Entry

NO_TICKET = cast(Any, None)


def entry(stream: str, index: int, frames: int, arrived: float, caller: str = "") -> Entry:
    payload = np.zeros((frames, 2), np.int32)
    return Entry(CodecChunk(stream, index, payload, payload[:0], final=False, arrived=arrived), NO_TICKET, caller)


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
