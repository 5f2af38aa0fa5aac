"""The chunks that wait to be decoded, and which of them are next.

A stream's chunks keep their order, because only the first one that waits can join a batch. The most urgent chunk is
the one whose listener's playback runs dry first. A stream's first chunk, and a chunk that ends a stream without
samples, go ahead of all listeners that have not waited for long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from voice_clone.batching.stream import Playback
from voice_clone.codec.chunk import Chunk, Decoded

FIRST_CHUNK_LEAD = 2.0  # seconds; a first chunk goes ahead of listeners that have waited for less


class Ticket(Protocol):
    """Where a chunk's samples go: `done`, `skip` or `fail` is called once."""

    def cancelled(self) -> bool:
        """Whether the client has left."""

    def done(self, decoded: Decoded) -> None:
        """The chunk's samples."""

    def skip(self) -> None:
        """There are none; the stream's final chunk says why."""

    def fail(self, error: BaseException) -> None:
        """There are none, because of `error`."""


@dataclass
class Entry:
    """A chunk that waits."""

    chunk: Chunk
    ticket: Ticket

    @property
    def frames(self) -> int:
        """How many it has."""
        return len(self.chunk.payload)


class ChunkQueue:
    """The waiting chunks of all streams; not thread-safe.

    Args:
        sample_rate: Hz.
        clock: seconds, monotonic.
    """

    def __init__(self, sample_rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._sample_seconds = 1 / sample_rate
        self._clock = clock
        self._waiting: dict[str, deque[Entry]] = {}  # by stream
        self._chunks = 0
        self._playback: dict[str, Playback] = {}  # by open stream

    def __len__(self) -> int:
        """How many chunks wait."""
        return self._chunks

    @property
    def streams(self) -> Collection[str]:
        """The streams with chunks that wait."""
        return self._waiting.keys()

    def put(self, entry: Entry) -> None:
        """Behind the other chunks of its stream."""
        self._waiting.setdefault(entry.chunk.stream_id, deque()).append(entry)
        self._chunks += 1

    def take(self, count: int, unequal: bool = False) -> list[Entry]:
        """The most urgent chunk, and those of other streams with as many frames, the most urgent ones first.

        Args:
            unequal: with as many frames or fewer. A longer chunk would keep the most urgent one waiting.
        """
        heads = sorted((entries[0] for entries in self._waiting.values()), key=self._due)
        most = heads[0].frames if heads else 0
        batch = [entry for entry in heads if entry.frames == most or (unequal and entry.frames < most)][:count]
        for entry in batch:
            entries = self._waiting[entry.chunk.stream_id]
            entries.popleft()
            if not entries:
                del self._waiting[entry.chunk.stream_id]
        self._chunks -= len(batch)
        return batch

    def record_sent(self, stream_id: str, samples: int) -> None:
        """So many more samples were sent to a stream's listener."""
        self._playback.setdefault(stream_id, Playback(self._sample_seconds)).add(samples, self._clock())

    def forget(self, stream_id: str) -> Playback | None:
        """A stream has ended; its chunks that wait stay. Returns how it was heard; None if nothing was."""
        return self._playback.pop(stream_id, None)

    def _due(self, entry: Entry) -> float:
        """A chunk's due time; the most urgent chunk has the least."""
        if entry.chunk.index == 0 or not entry.frames:
            return entry.chunk.arrived - FIRST_CHUNK_LEAD
        playback = self._playback.get(entry.chunk.stream_id)
        return entry.chunk.arrived if playback is None or playback.until is None else playback.until
