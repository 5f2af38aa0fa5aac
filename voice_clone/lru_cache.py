"""LRU caches bounded in bytes, for what is computed of a voice once and used by its next speeches.

Callers share a cache. What leaves it is the least recently used entry of the caller that holds most, so that the new
entries of one caller do not evict the few that another one uses. A caller alone has a plain LRU cache.

What is computed of an owner's clip is found within this owner alone. Else a hit, or the time that it saves, would tell
one owner that another one has the same clip.

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
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:  # what starts a server reads names of voices without numpy
    from numpy.typing import NDArray

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
STALE = 600.0  # seconds without use, after which an entry goes before all others, whoever holds it


def scope_of(owner: str | None) -> str:
    """The scope of an owner's clips; None: the operator's."""
    return "" if owner is None else f"of {owner}"


class Origin(NamedTuple):
    """The voice of a speech.

    Attributes:
        voice: speaker_cache's name of it, by which it is also forgotten; empty: speaker_cache does not know it.
        found: when it was looked up, or a moment before: seconds on this machine's monotonic clock.
        keep: whether what is computed of it may be cached, and what is cached may be used.
        scope: within which what is cached is found: by `scope_of`, or that of a voice that owners share.
        caller: the name of the one for whom the speech is.
    """

    voice: str
    found: float
    keep: bool = True
    scope: str = ""
    caller: str = ""

    @classmethod
    def unknown(cls) -> Origin:
        """The origin of what a caller sends without the name of a voice."""
        return cls("", time.monotonic())

    @classmethod
    def from_json(cls, value: Any) -> Origin:
        """The origin that was sent as JSON; that of an unknown voice if it is invalid."""
        try:
            voice, found, *more = value
            keep, scope, caller = more + [True, "", ""][len(more) :]
            past = min(float(found), time.monotonic()) if math.isfinite(found) else -math.inf
            return cls(str(voice), past, keep is not False, str(scope), str(caller))
        except (TypeError, ValueError, OverflowError):
            return cls.unknown()


class CacheUsage(NamedTuple):
    """The contents of a process's caches: entries, their bytes, and their voices, by speaker_cache's names of them."""

    entries: int
    nbytes: int
    voices: frozenset[str]


def within(key: bytes, origin: Origin) -> bytes:
    """A key as it stands in an `LRUCache`: within the scope of its origin."""
    return f"{origin.scope} ".encode() + key if origin.scope else key


@dataclass
class Held(Generic[V]):
    """A value in a cache, and the caller who used it last."""

    value: V
    nbytes: int
    caller: str
    used: float


@dataclass
class _Holder(Generic[K]):
    """A caller: its entries, the least recently used first, and their bytes."""

    keys: dict[K, None] = field(default_factory=dict)
    nbytes: int = 0


class CallersLRU(Generic[K, V]):
    """The entries of all callers, the least recently used first. Bounds nothing by itself; not thread-safe.

    Args:
        clock: seconds, monotonic.

    Attributes:
        entries: all of them; for reading alone.
        nbytes: of all of them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.entries: OrderedDict[K, Held[V]] = OrderedDict()
        self.nbytes = 0
        self._holders: dict[str, _Holder[K]] = {}

    def use(self, key: K, caller: str) -> V | None:
        """The value, now the most recently used, and held by `caller`; None if it is not there."""
        if key not in self.entries:
            return None
        held = self.drop(key)
        self.put(key, held.value, held.nbytes, caller)
        return held.value

    def put(self, key: K, value: V, nbytes: int, caller: str) -> None:
        """Add an entry whose key is not there, as the most recently used."""
        self.entries[key] = Held(value, nbytes, caller, self._clock())
        self.nbytes += nbytes
        holder = self._holders.setdefault(caller, _Holder())
        holder.keys[key] = None
        holder.nbytes += nbytes

    def drop(self, key: K) -> Held[V]:
        """Remove an entry."""
        held = self.entries.pop(key)
        self.nbytes -= held.nbytes
        holder = self._holders[held.caller]
        del holder.keys[key]
        holder.nbytes -= held.nbytes
        if not holder.keys:
            del self._holders[held.caller]
        return held

    def evict(self, nbytes: int, caller: str) -> K:
        """Drop one entry, to make room for `nbytes` of a caller's, which count as held. Returns its key."""
        oldest, held = next(iter(self.entries.items()))
        if self._clock() - held.used <= STALE:
            mine = self._holders.get(caller)
            _, _, most = max(
                (holder.nbytes + nbytes * (holder is mine), holder is mine, name)
                for name, holder in self._holders.items()
            )
            oldest = next(iter(self._holders[most].keys))
        self.drop(oldest)
        return oldest


@dataclass
class _Value(Generic[V]):
    value: V
    voices: set[str]  # that it was computed of, or used by


class LRUCache(Generic[V]):
    """A map bounded in bytes and idle time. Thread-safe.

    Args:
        max_bytes: of all values together; a larger value is not cached.
        idle_seconds: a value that was not used for so long is evicted.
        clock: seconds, monotonic.
    """

    _forgotten = -math.inf  # when a voice was last forgotten, on the clock of `Origin.found`

    def __init__(
        self, max_bytes: int, idle_seconds: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_bytes = max_bytes
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._cached: CallersLRU[bytes, _Value[V]] = CallersLRU(clock)
        self._lock = threading.RLock()

    @classmethod
    def forget_at_rest(cls) -> None:
        """A voice is forgotten while this process has no cache. A cache that is made later refuses what was looked up
        before, too.
        """
        cls._forgotten = time.monotonic()

    @property
    def nbytes(self) -> int:
        return self._cached.nbytes

    def __contains__(self, key: bytes) -> bool:
        """Whether there is a value; `key` is one of `within`."""
        return key in self._cached.entries

    def get(self, key: bytes, origin: Origin) -> V | None:
        """The value, now the most recently used; None if it is not cached within the scope of this origin."""
        with self._lock:
            self.sweep()
            found = self._cached.use(within(key, origin), origin.caller) if origin.keep else None
            if found is None:
                return None
            found.voices.add(origin.voice)
            return found.value

    def put(self, key: bytes, value: V, nbytes: int, origin: Origin) -> None:
        """Cache a value as the most recently used, if it can fit; it replaces an older one of the key.

        Nothing happens if a voice was forgotten since this one was looked up.
        """
        with self._lock:
            if origin.found <= self._forgotten or not origin.keep:
                return
            key, voices = within(key, origin), {origin.voice}
            if key in self:
                voices |= self._cached.drop(key).value.voices
            if nbytes > self.max_bytes:
                return
            while self.nbytes + nbytes > self.max_bytes:
                self._cached.evict(nbytes, origin.caller)
            self._cached.put(key, _Value(value, voices), nbytes, origin.caller)

    def forget(self, voices: Collection[str]) -> CacheUsage:
        """Drop all that was computed of these voices, or used by them; there may be none. Returns what is left."""
        with self._lock:
            if voices:
                self._forgotten = time.monotonic()
            entries = self._cached.entries
            for key in [key for key, held in entries.items() if not held.value.voices.isdisjoint(voices)]:
                self._cached.drop(key)
            known = frozenset().union(*(held.value.voices for held in entries.values())) - {""}
            return CacheUsage(len(entries), self.nbytes, known)

    def sweep(self) -> None:
        """Evict what was not used for `idle_seconds`."""
        with self._lock:
            entries, oldest = self._cached.entries, self._clock() - self._idle_seconds
            while entries and next(iter(entries.values())).used < oldest:
                self._cached.drop(next(iter(entries)))

    def clear(self) -> None:
        """Evict all."""
        with self._lock:
            self._cached = CallersLRU(self._clock)


def digest(*arrays: NDArray[Any]) -> bytes:
    """A key: the SHA-256 of arrays, their types and shapes."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
    return found.digest()
