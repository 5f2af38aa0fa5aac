"""An LRU cache bounded in bytes and idle time, for what is computed of a voice once and used by its next speeches.

A deleted voice is forgotten: what was computed of it is dropped and does not come back. When any voice is forgotten, a
speech that looked its voice up before may have that voice. So nothing that such a speech computes is cached any more,
and no list of deleted voices is needed.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

V = TypeVar("V")


class Origin(NamedTuple):
    """The voice of a speech.

    Attributes:
        voice: speaker_cache's name of it, by which it is also forgotten; empty: speaker_cache does not know it.
        found: when it was looked up, or a moment before: seconds on this machine's monotonic clock.
        keep: whether what is computed of it may be cached, and what is cached may be used.
    """

    voice: str
    found: float
    keep: bool = True

    @classmethod
    def unknown(cls) -> Origin:
        """The origin of what a caller sends without the name of a voice."""
        return cls("", time.monotonic())

    @classmethod
    def from_json(cls, value: Any) -> Origin:
        """The origin that was sent as JSON; that of an unknown voice if it is invalid."""
        try:
            voice, found, *keep = value
            past = min(float(found), time.monotonic()) if math.isfinite(found) else -math.inf
            return cls(str(voice), past, keep != [False])
        except (TypeError, ValueError, OverflowError):
            return cls.unknown()


class CacheUsage(NamedTuple):
    """The contents of a process's caches: entries, their bytes, and their voices, by speaker_cache's names of them."""

    entries: int
    nbytes: int
    voices: frozenset[str]


@dataclass
class _Entry(Generic[V]):
    value: V
    nbytes: int
    used: float
    voices: set[str] = field(default_factory=set)  # that it was computed of, or used by


class LRUCache(Generic[V]):
    """A map bounded in bytes and idle time; the least recently used entry is evicted first. Thread-safe.

    Args:
        max_bytes: of all values together; a larger value is not cached.
        idle_seconds: a value that was not used for so long is evicted.
        clock: seconds, monotonic.
    """

    def __init__(
        self, max_bytes: int, idle_seconds: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_bytes = max_bytes
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry[V]] = OrderedDict()  # least recently used first
        self.nbytes = 0
        self._forgotten = -math.inf  # when a voice was last forgotten, on the clock of `Origin.found`
        self._lock = threading.RLock()

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def get(self, key: bytes, origin: Origin) -> V | None:
        """The value, now the most recently used; None if it is not cached."""
        with self._lock:
            self.sweep()
            entry = self._entries.get(key)
            if entry is None or not origin.keep:
                return None
            self._entries.move_to_end(key)
            entry.used = self._clock()
            entry.voices.add(origin.voice)
            return entry.value

    def put(self, key: bytes, value: V, nbytes: int, origin: Origin) -> None:
        """Cache a value as the most recently used, if it can fit; it replaces an older one of the key.

        Nothing happens if a voice was forgotten since this one was looked up.
        """
        with self._lock:
            if origin.found <= self._forgotten or not origin.keep:
                return
            voices = {origin.voice}
            if key in self._entries:
                voices |= self._entries[key].voices
                self._drop(key)
            if nbytes > self.max_bytes:
                return
            while self.nbytes + nbytes > self.max_bytes:
                self._drop(next(iter(self._entries)))
            self._entries[key] = _Entry(value, nbytes, self._clock(), voices)
            self.nbytes += nbytes

    def forget(self, voices: Collection[str]) -> CacheUsage:
        """Drop all that was computed of these voices, or used by them; there may be none. Returns what is left."""
        with self._lock:
            if voices:
                self._forgotten = time.monotonic()
            for key in [key for key, entry in self._entries.items() if not entry.voices.isdisjoint(voices)]:
                self._drop(key)
            known = frozenset().union(*(entry.voices for entry in self._entries.values())) - {""}
            return CacheUsage(len(self._entries), self.nbytes, known)

    def sweep(self) -> None:
        """Evict what was not used for `idle_seconds`."""
        with self._lock:
            oldest = self._clock() - self._idle_seconds
            while self._entries and next(iter(self._entries.values())).used < oldest:
                self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        """Evict all."""
        with self._lock:
            self._entries.clear()
            self.nbytes = 0

    def _drop(self, key: bytes) -> None:
        self.nbytes -= self._entries.pop(key).nbytes


def digest(*arrays: NDArray[Any]) -> bytes:
    """A key: the SHA-256 of arrays, their types and shapes."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return found.digest()
