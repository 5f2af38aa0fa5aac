"""Artifacts in memory, the least recently used going first; registered speakers and inline clips in separate pools.

Both pools share one budget of bytes and entries, exactly kept. Inline clips may fill a fixed share of it and never push
out a registered speaker; a registered speaker that needs room takes it from the inline clips first. Every operation
takes constant time (`discard` per entry dropped) under one lock; counters only ever grow.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Pool = Literal["registered", "inline"]
POOLS: tuple[Pool, Pool] = ("registered", "inline")


class CacheKey(NamedTuple):
    """What artifacts belong to. A tuple, never a joined string: no two can collide.

    `speaker` is a registered speaker's key, or the digest of an inline clip (whose generation is 0).
    """

    model_type: str
    speaker: str
    generation: int
    fingerprint: str
    mode: str


@dataclass
class _Side:
    """One pool: its entries, oldest first; the keys of each speaker; bytes; counters."""

    entries: OrderedDict[CacheKey, bytes] = field(default_factory=OrderedDict)
    by_speaker: dict[str, set[CacheKey]] = field(default_factory=dict)
    size: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    skips: int = 0

    def add(self, key: CacheKey, value: bytes) -> None:
        self.entries[key] = value
        self.by_speaker.setdefault(key.speaker, set()).add(key)
        self.size += len(value)

    def drop(self, key: CacheKey) -> None:
        self.size -= len(self.entries.pop(key))
        keys = self.by_speaker[key.speaker]
        keys.remove(key)
        if not keys:
            del self.by_speaker[key.speaker]

    def evict(self) -> None:
        self.drop(next(iter(self.entries)))
        self.evictions += 1


class ArtifactCache:
    """A bounded map from `CacheKey` to the artifacts' safetensors bytes. Thread-safe.

    Args:
        max_bytes, max_entries: of both pools together; 0 keeps nothing.
        inline_share: the part of both that the inline pool may take.
    """

    def __init__(self, max_bytes: int, max_entries: int, inline_share: float) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._inline_bytes = int(max_bytes * inline_share)
        self._inline_entries = int(max_entries * inline_share)
        self._sides: dict[Pool, _Side] = {pool: _Side() for pool in POOLS}
        self._lock = threading.Lock()

    def get(self, pool: Pool, key: CacheKey) -> bytes | None:
        """The artifacts, now the most recently used; None if they are not here. Counts a hit or a miss."""
        with self._lock:
            side = self._sides[pool]
            value = side.entries.get(key)
            if value is None:
                side.misses += 1
                return None
            side.entries.move_to_end(key)
            side.hits += 1
            return value

    def peek(self, pool: Pool, key: CacheKey) -> bytes | None:
        """The artifacts if they are here; counts and moves nothing."""
        with self._lock:
            return self._sides[pool].entries.get(key)

    def put(self, pool: Pool, key: CacheKey, value: bytes) -> bool:
        """Keep the artifacts as the most recently used; False if they cannot fit (an older entry of the key goes)."""
        with self._lock:
            side = self._sides[pool]
            if key in side.entries:
                side.drop(key)
            fits = self._make_room(pool, len(value))
            if fits:
                side.add(key, value)
            else:
                side.skips += 1
            return fits

    def discard(self, pool: Pool, speaker: str) -> int:
        """Drop all that belongs to a speaker, whatever the model type, generation or mode; how many entries."""
        with self._lock:
            side = self._sides[pool]
            keys = tuple(side.by_speaker.get(speaker, ()))
            for key in keys:
                side.drop(key)
            return len(keys)

    def stats(self) -> dict[Pool, dict[str, int]]:
        """Bytes, entries and counters of each pool, all of one moment."""
        with self._lock:
            return {
                pool: {
                    "bytes": side.size,
                    "entries": len(side.entries),
                    "hits": side.hits,
                    "misses": side.misses,
                    "evictions": side.evictions,
                    "oversize_skips": side.skips,
                }
                for pool, side in self._sides.items()
            }

    def _make_room(self, pool: Pool, size: int) -> bool:
        """Evict until an entry of `size` bytes fits into `pool`; False, with nothing evicted, if it never can."""
        registered, inline = self._sides["registered"], self._sides["inline"]
        if pool == "inline":
            most_bytes = min(self._inline_bytes, self._max_bytes - registered.size)
            most_entries = min(self._inline_entries, self._max_entries - len(registered.entries))
            if size > most_bytes or most_entries < 1:
                return False
            while inline.size + size > most_bytes or len(inline.entries) >= most_entries:
                inline.evict()
            return True
        if size > self._max_bytes or self._max_entries < 1:
            return False
        while (
            registered.size + inline.size + size > self._max_bytes
            or len(registered.entries) + len(inline.entries) >= self._max_entries
        ):
            (inline if inline.entries else registered).evict()
        return True
