"""Which chunks are decoded together."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from voice_clone.codec.chunk import CodecChunk
from voice_clone.codec.worker import ChunkQueue, Entry

NO_TICKET = cast(Any, None)


def entry(stream: str, index: int, frames: int, arrived: float) -> Entry:
    payload = np.zeros((frames, 2), np.int32)
    return Entry(CodecChunk(stream, index, payload, payload[:0], final=False, arrived=arrived), NO_TICKET)


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
