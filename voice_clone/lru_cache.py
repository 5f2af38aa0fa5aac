"""An LRU cache bounded in bytes and idle time, for what is computed of a voice once and used by its next speeches."""

from __future__ import annotations

import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

V = TypeVar("V")


@dataclass
class _Entry(Generic[V]):
    value: V
    nbytes: int
    used: float


class LRUCache(Generic[V]):
    """A map bounded in bytes and idle time; the least recently used entry is evicted first. For one thread.

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

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def get(self, key: bytes) -> V | None:
        """The value, now the most recently used; None if it is not cached."""
        self.sweep()
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        entry.used = self._clock()
        return entry.value

    def put(self, key: bytes, value: V, nbytes: int) -> None:
        """Cache a value as the most recently used, if it can fit; it replaces an older one of the key."""
        if key in self._entries:
            self._drop(key)
        if nbytes > self.max_bytes:
            return
        while self.nbytes + nbytes > self.max_bytes:
            self._drop(next(iter(self._entries)))
        self._entries[key] = _Entry(value, nbytes, self._clock())
        self.nbytes += nbytes

    def sweep(self) -> None:
        """Evict what was not used for `idle_seconds`."""
        oldest = self._clock() - self._idle_seconds
        while self._entries and next(iter(self._entries.values())).used < oldest:
            self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        """Evict all."""
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
