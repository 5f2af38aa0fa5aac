"""The LRU cache of artifacts, with separate pools for registered speakers and inline clips.

Both pools share one budget of bytes and entries and never exceed it. Inline clips may fill a fixed share of it and
never evict a registered speaker; a registered speaker evicts inline clips first. Within a pool callers share as in
`lru_cache`. Every operation takes constant time (`discard`: per entry dropped; evictions: per caller) under one lock;
counters only grow.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from voice_clone.lru_cache import CallersLRU
from voice_clone.turn_pool import caller_now

Pool = Literal["registered", "inline"]
POOLS: tuple[Pool, Pool] = ("registered", "inline")


class CacheKey(NamedTuple):
    """The key of artifacts. It is a tuple, never a joined string: no two keys can collide.

    `speaker` is a registered speaker's key, or the digest of an inline clip (whose generation is 0). `scope` is that of
    the owner of an inline clip, by `scope_of`. `style` is that of a registered speaker's clip.
    """

    model_type: str
    speaker: str
    generation: int
    fingerprint: str
    mode: str
    scope: str = ""
    style: str = ""


@dataclass
class _PoolState:
    """The entries of one pool, the keys of each speaker, and counters."""

    cached: CallersLRU[CacheKey, bytes] = field(default_factory=CallersLRU)
    by_speaker: dict[str, set[CacheKey]] = field(default_factory=dict)
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    skips: int = 0

    def add(self, key: CacheKey, value: bytes) -> None:
        self.cached.put(key, value, len(value), caller_now.get().name)
        self.by_speaker.setdefault(key.speaker, set()).add(key)

    def drop(self, key: CacheKey) -> None:
        self.cached.drop(key)
        self._unlist(key)

    def evict(self, size: int) -> None:
        self._unlist(self.cached.evict(size, caller_now.get().name))
        self.evictions += 1

    def _unlist(self, key: CacheKey) -> None:
        keys = self.by_speaker[key.speaker]
        keys.remove(key)
        if not keys:
            del self.by_speaker[key.speaker]


class ArtifactCache:
    """A bounded map from `CacheKey` to the artifacts' safetensors bytes. Thread-safe.

    Args:
        max_bytes, max_entries: of both pools together; 0 keeps nothing.
        inline_share: the part of both that the inline pool may use.
    """

    def __init__(self, max_bytes: int, max_entries: int, inline_share: float) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._inline_bytes = int(max_bytes * inline_share)
        self._inline_entries = int(max_entries * inline_share)
        self._pools: dict[Pool, _PoolState] = {pool: _PoolState() for pool in POOLS}
        self._lock = threading.Lock()

    def get(self, pool: Pool, key: CacheKey) -> bytes | None:
        """Return the artifacts, and make them the most recently used; None if absent. Counts a hit or a miss."""
        with self._lock:
            state = self._pools[pool]
            value = state.cached.use(key, caller_now.get().name)
            if value is None:
                state.misses += 1
            else:
                state.hits += 1
            return value

    def peek(self, pool: Pool, key: CacheKey) -> bytes | None:
        """Return the artifacts if present, without a change of counters or order."""
        with self._lock:
            held = self._pools[pool].cached.entries.get(key)
            return None if held is None else held.value

    def put(self, pool: Pool, key: CacheKey, value: bytes) -> bool:
        """Keep the artifacts as the most recently used; False if they cannot fit. Drops an older entry."""
        with self._lock:
            state = self._pools[pool]
            if key in state.cached.entries:
                state.drop(key)
            fits = self._make_room(pool, len(value))
            if fits:
                state.add(key, value)
            else:
                state.skips += 1
            return fits

    def discard(self, pool: Pool, speaker: str) -> int:
        """Drop all entries of a speaker, of any model type, generation, mode and scope. Returns their number."""
        with self._lock:
            state = self._pools[pool]
            keys = tuple(state.by_speaker.get(speaker, ()))
            for key in keys:
                state.drop(key)
            return len(keys)

    def stats(self) -> dict[Pool, dict[str, int]]:
        """Return bytes, entries and counters of each pool at one moment."""
        with self._lock:
            return {
                pool: {
                    "bytes": state.cached.nbytes,
                    "entries": len(state.cached.entries),
                    "hits": state.hits,
                    "misses": state.misses,
                    "evictions": state.evictions,
                    "oversize_skips": state.skips,
                }
                for pool, state in self._pools.items()
            }

    def _make_room(self, pool: Pool, size: int) -> bool:
        """Evict until an entry of `size` bytes fits into `pool`; False, with nothing evicted, if it never can."""
        registered, inline = self._pools["registered"], self._pools["inline"]
        kept, clips = registered.cached, inline.cached
        if pool == "inline":
            most_bytes = min(self._inline_bytes, self._max_bytes - kept.nbytes)
            most_entries = min(self._inline_entries, self._max_entries - len(kept.entries))
            if size > most_bytes or most_entries < 1:
                return False
            while clips.nbytes + size > most_bytes or len(clips.entries) >= most_entries:
                inline.evict(size)
            return True
        if size > self._max_bytes or self._max_entries < 1:
            return False
        while (
            kept.nbytes + clips.nbytes + size > self._max_bytes
            or len(kept.entries) + len(clips.entries) >= self._max_entries
        ):
            if clips.entries:
                inline.evict(0)
            else:
                registered.evict(size)
        return True
