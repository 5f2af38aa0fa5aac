"""A cache of prefixes: the keys and values of the beginning of a prompt, which depends on the voice alone.

Role, language, speaker and the transcript of the reference stand before the text: a third of the prompt at 10 s of
reference. Their keys and values are the same in every prompt of a voice, so they are copied instead of computed. The
key is the digest of everything that they are computed from: a voice that is replaced has another one.

An entry holds keys and values (no audio, no name) until newer ones need the memory, or its voice is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from voice_clone.array_kinds import Numbers, copied
from voice_clone.autoregressive.stack.slot_memory import KeysAndValues
from voice_clone.autoregressive.talker import Prefix
from voice_clone.lru_cache import CacheUsage, LRUCache, Origin, within

log = logging.getLogger(__name__)


class PromptPrefixes:
    """Keys and values of prefixes.

    Only for a repeatable stack or fixed shapes: otherwise the last bits of a stream would depend on what was in the
    cache. With fixed shapes they do, too, as they depend on the other streams; in a deterministic generator they depend
    on neither.

    Args:
        cache: whose slots they are taken from and written to.
        max_bytes: as of `LRUCache`.
    """

    def __init__(self, cache: KeysAndValues, max_bytes: int) -> None:
        self._cache = cache
        self._cached: LRUCache[tuple[Numbers, Numbers]] = LRUCache(max_bytes)
        self._logged = False  # that one could not be stored

    @property
    def nbytes(self) -> int:
        return self._cached.nbytes

    def forget(self, voices: Collection[str]) -> CacheUsage:
        return self._cached.forget(voices)

    def read(self, prefix: Prefix, slot: int, origin: Origin) -> int:
        """Write a cached prefix to a slot; returns the number of positions: all of the prefix, or 0."""
        entry = self._cached.get(prefix.key, origin)
        if entry is None:
            return 0
        keys, values = self._positions(prefix, slot)
        keys[:], values[:] = entry
        return prefix.length

    def store(self, prefix: Prefix, slot: int, origin: Origin) -> None:
        """Cache the prefix that a slot has read, if it can fit. Never raises: its stream goes on without."""
        if self._bytes(prefix) > self._cached.max_bytes:
            return
        try:
            keys, values = self._positions(prefix, slot)
            self._cached.put(prefix.key, (copied(keys), copied(values)), self._bytes(prefix), origin)
        except Exception as error:
            if not self._logged:
                log.error("the prefix of a voice could not be kept; this is logged once", exc_info=error)
            self._logged = True

    def has_room(self, prefix: Prefix, origin: Origin) -> bool:
        """Whether it is cached, or fits without an eviction."""
        return within(prefix.key, origin) in self._cached or self.nbytes + self._bytes(prefix) <= self._cached.max_bytes

    def clear(self) -> None:
        self._cached.clear()

    def _positions(self, prefix: Prefix, slot: int) -> tuple[Numbers, Numbers]:
        return self._cache.keys[:, slot, :, : prefix.length], self._cache.values[:, slot, :, : prefix.length]

    def _bytes(self, prefix: Prefix) -> int:
        slots, positions = self._cache.keys.shape[1], self._cache.keys.shape[3]
        return prefix.length * (self._cache.nbytes // int(slots * positions))
