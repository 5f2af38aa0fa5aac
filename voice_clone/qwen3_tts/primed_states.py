"""Decoder states after a voice's reference codes, kept because they depend on the voice alone.

What stays in memory, and how long: the decoder's key-value caches and convolution histories of the reference (about
5 MB a voice at the released shape; no audio, no text, no name), until nobody has used them for `idle_seconds` or newer
ones need the room. None is written to disk: what is there of a voice are its codes. A key is the digest of the codes
themselves: a voice that is replaced has other codes, and so another key.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voice_clone.qwen3_tts.codec_decoder import DecoderState


@dataclass
class _Entry:
    state: DecoderState
    used: float
    asked: bool  # whether a stream has had it, or it was here before any could ask


class PrimedStates:
    """A map from reference codes to the state after them, bounded in bytes and time, least recently used going first.

    Args:
        max_bytes: of all states together; a state that is larger is not kept.
        idle_seconds: a state that nobody has used for so long is forgotten.
        clock: seconds, monotonic.

    For one thread.
    """

    def __init__(self, max_bytes: int, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # least recently used first
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, codes: NDArray[np.int32]) -> bool:
        return _digest(codes) in self._entries

    def get(self, codes: NDArray[np.int32]) -> tuple[DecoderState, bool] | None:
        """The state after `codes` [frames, codebooks], for one stream to go on from, and whether it was computed for
        another one; None if it is not here.
        """
        self.sweep()
        entry = self._entries.get(key := _digest(codes))
        if entry is None:
            return None
        self._entries.move_to_end(key)
        entry.used = self._clock()
        asked, entry.asked = entry.asked, True
        return entry.state.fork(), asked

    def put(self, codes: NDArray[np.int32], state: DecoderState, asked: bool = True) -> None:
        """Keep the state after `codes`, if it can fit; the caller may go on from `state` itself.

        `asked`: false if the stream for which it was computed is yet to ask for it.
        """
        key, size = _digest(codes), state.nbytes
        if key in self._entries:
            self._drop(key)
        if size > self._max_bytes:
            return
        while self.nbytes + size > self._max_bytes:
            self._drop(next(iter(self._entries)))
        self._entries[key] = _Entry(state.fork(), self._clock(), asked)
        self.nbytes += size

    def room(self, size: int) -> int:
        """How many states of `size` bytes can be here at once."""
        return self._max_bytes // size

    def sweep(self) -> None:
        """Forget what nobody has used for `idle_seconds`."""
        oldest = self._clock() - self._idle_seconds
        while self._entries and next(iter(self._entries.values())).used < oldest:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        self.nbytes -= self._entries.pop(key).state.nbytes


def _digest(codes: NDArray[np.int32]) -> bytes:
    digest = hashlib.sha256(repr(codes.shape).encode())
    digest.update(np.ascontiguousarray(codes, dtype=np.int32).tobytes())
    return digest.digest()
