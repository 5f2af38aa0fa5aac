"""Decoder states after a voice's reference frames, cached because they depend on the voice alone.

An entry holds the decoder's key-value caches and convolution histories after the reference (some megabytes; no audio,
no text, no name). It is evicted when it was not used for `idle_seconds`, when newer ones need the memory, or when its
voice is forgotten. No entry is written to disk. The key is the digest of the reference: a voice that is replaced has
another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from voice_clone.codec.chunk import Reference
from voice_clone.layers.streaming import StreamState
from voice_clone.lru_cache import LRUCache


@dataclass
class _Primed:
    state: StreamState
    used: bool  # by a stream, or restored before any stream could ask


class PrimedStates:
    """The states after reference frames.

    Args: as of `LRUCache`.

    Attributes:
        cached: all of them; any thread may make it forget a voice.
    """

    def __init__(self, max_bytes: int, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.cached: LRUCache[_Primed] = LRUCache(max_bytes, idle_seconds, clock)

    def __contains__(self, reference: Reference) -> bool:
        return reference.key in self.cached

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return self.cached.nbytes

    def get(self, reference: Reference) -> tuple[StreamState, bool] | None:
        """The state after a reference, from which one stream may continue, and whether an earlier stream has used it;
        None if it is not cached.
        """
        primed = self.cached.get(reference.key, reference.origin)
        if primed is None:
            return None
        used, primed.used = primed.used, True
        return primed.state.fork(), used

    def put(self, reference: Reference, state: StreamState, used: bool = True) -> None:
        """Cache the state after a reference, if it can fit; the caller may continue from `state` itself.

        `used`: false if the stream for which it was computed will still ask for it.
        """
        self.cached.put(reference.key, _Primed(state.fork(), used), state.nbytes, reference.origin)

    def room(self, size: int) -> int:
        """How many states of `size` bytes fit."""
        return self.cached.max_bytes // size

    def sweep(self) -> None:
        """Evict what was not used for long."""
        self.cached.sweep()
