"""The chunks that wait to be decoded, and which of them are next.

A stream's chunks never overtake each other, for only the first one waiting can join a batch. The chunk whose listener
will be the first to have nothing left to hear is the most urgent; a stream's first chunk, and what ends one without
samples, goes ahead of those of everybody who has not been waiting for long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from voice_clone.codec.code2wav import Chunk, Decoded

FIRST_CHUNK_LEAD = 2.0  # seconds; a stream's first chunk goes ahead of listeners who have waited for less


class Ticket(Protocol):
    """Where a chunk's samples go: `done`, `skip` or `fail` is called once."""

    def cancelled(self) -> bool:
        """Whether nobody wants the samples any more."""

    def done(self, decoded: Decoded) -> None:
        """The chunk's samples."""

    def skip(self) -> None:
        """There are none; why comes with the stream's final chunk."""

    def fail(self, error: BaseException) -> None:
        """There are none, because of `error`."""


@dataclass
class Entry:
    """A chunk that waits; `frames` are those that it came with."""

    chunk: Chunk
    ticket: Ticket
    frames: int


class ChunkQueue:
    """The waiting chunks of all streams; not thread-safe.

    Args:
        frame_seconds: how long a frame is heard.
    """

    def __init__(self, frame_seconds: float) -> None:
        self._frame_seconds = frame_seconds
        self._waiting: dict[str, deque[Entry]] = {}  # by stream
        self._chunks = 0
        self._heard_until: dict[str, float] = {}  # by open stream: when its listener has heard all that was decoded

    def __len__(self) -> int:
        """How many chunks wait."""
        return self._chunks

    @property
    def streams(self) -> Collection[str]:
        """Whose chunks wait."""
        return self._waiting.keys()

    def put(self, entry: Entry) -> None:
        """Behind the other chunks of its stream."""
        self._waiting.setdefault(entry.chunk.stream_id, deque()).append(entry)
        self._chunks += 1

    def take(self, count: int) -> list[Entry]:
        """The most urgent chunk, and those of other streams with as many frames, the most urgent ones first."""
        heads = sorted((entries[0] for entries in self._waiting.values()), key=self._due)
        batch = [entry for entry in heads if entry.frames == heads[0].frames][:count]
        for entry in batch:
            entries = self._waiting[entry.chunk.stream_id]
            entries.popleft()
            if not entries:
                del self._waiting[entry.chunk.stream_id]
        self._chunks -= len(batch)
        return batch

    def heard(self, stream_id: str, frames: int) -> None:
        """A listener has been sent `frames` more."""
        now = time.monotonic()
        self._heard_until[stream_id] = max(now, self._heard_until.get(stream_id, now)) + self._frame_seconds * frames

    def forget(self, stream_id: str) -> None:
        """A stream has ended; what waits of it stays."""
        self._heard_until.pop(stream_id, None)

    def _due(self, entry: Entry) -> float:
        """The most urgent chunk has the least."""
        if entry.chunk.index == 0 or not entry.frames:
            return entry.chunk.arrived - FIRST_CHUNK_LEAD
        return self._heard_until.get(entry.chunk.stream_id, entry.chunk.arrived)
