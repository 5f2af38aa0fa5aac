"""Decoder states after a voice's reference codes, kept because they depend on the voice alone.

What stays in memory, and how long: the decoder's key-value caches and convolution histories of the reference (about
5 MB a voice at the released shape; no audio, no text, no name), until nobody has used them for `idle_seconds` or newer
ones need the room. None is written to disk: what is there of a voice are its codes. A key is the digest of the codes
themselves: a voice that is replaced has other codes, and so another key.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voice_clone.families.qwen3_tts.networks.codec_decoder import DecoderState
from voice_clone.lru_cache import Kept, digest


@dataclass
class _Primed:
    state: DecoderState
    asked: bool  # whether a stream has had it, or it was here before any could ask


class PrimedStates:
    """The states after reference codes.

    Args: as of `Kept`.
    """

    def __init__(self, max_bytes: int, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept: Kept[_Primed] = Kept(max_bytes, idle_seconds, clock)

    def __contains__(self, codes: NDArray[np.int32]) -> bool:
        return digest(codes) in self._kept

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return self._kept.nbytes

    def get(self, codes: NDArray[np.int32]) -> tuple[DecoderState, bool] | None:
        """The state after `codes` [frames, codebooks], for one stream to go on from, and whether it was computed for
        another one; None if it is not here.
        """
        primed = self._kept.get(digest(codes))
        if primed is None:
            return None
        asked, primed.asked = primed.asked, True
        return primed.state.fork(), asked

    def put(self, codes: NDArray[np.int32], state: DecoderState, asked: bool = True) -> None:
        """Keep the state after `codes`, if it can fit; the caller may go on from `state` itself.

        `asked`: false if the stream for which it was computed is yet to ask for it.
        """
        self._kept.put(digest(codes), _Primed(state.fork(), asked), state.nbytes)

    def room(self, size: int) -> int:
        """How many states of `size` bytes can be here at once."""
        return self._kept.max_bytes // size

    def sweep(self) -> None:
        """Forget what nobody has used for long."""
        self._kept.sweep()
