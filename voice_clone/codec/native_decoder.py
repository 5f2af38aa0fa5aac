"""Decoders as native code: chains of layers, one behind the other. Used on a CPU. They compute without torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from voice_clone.codec.decoder import StreamDecoder, StreamState
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain import Chain
from voice_clone.native.packed_file import NOWHERE, PackedFile


def tanh(x: Array) -> Array:
    """Of float32 numbers, rounded once, so that it is the same on all processors."""
    found: Array = np.tanh(x, dtype=np.float64).astype(np.float32)
    return found


class NativeDecoder(StreamDecoder[Array]):
    """As a decoder in torch, as far as streams need it; fp32.

    A stream's samples are the same, bit for bit, in chunks of any size and beside any other streams.

    Args:
        load: what has the decoder's weights at each call, such as the same decoder in torch on the CPU; called if they
            are not found packed. They are packed one after the other and given up.
        packed: finds the packed weights and keeps them.

    Attributes:
        parts: the chains, each of which reads what the one before it makes. What has the weights makes one by its
            method `PART_chain`.
        rates: rows of a frame that each of them reads.
        piece_frames: that the last one decodes at once, of all streams together: more would take more memory and be
            hardly faster.
    """

    any_shape = True
    parts: ClassVar[tuple[str, ...]] = ("latent", "waveform")
    rates: Sequence[int] = (1, 1)
    piece_frames: ClassVar[int] = 8

    def __init__(self, load: Callable[[], Any], packed: PackedFile = NOWHERE) -> None:
        def arrays(part: str) -> list[Array]:
            return packed.part(part)(lambda: getattr(load(), f"{part}_chain")().arrays)

        self._chains = [Chain.restored(arrays(part)) for part in self.parts]
        packed.keep()

    @abstractmethod
    def rows(self, frames: Array) -> Array:
        """Frames [B, K, n] -> what the first chain reads, [B, n * rate, C]."""

    @abstractmethod
    def bound(self, samples: Array) -> Array:
        """What the last chain makes -> samples in -1..1. The next piece overwrites the former."""

    @property
    def device(self) -> None:
        """In numpy's arrays."""

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return sum(chain.nbytes for chain in self._chains)

    @property
    def multiplications(self) -> int:
        """Of a frame, in products; less than the layers' definition has, by those that Winograd convolutions save."""
        return sum(rate * chain.multiplications for rate, chain in zip(self.rates, self._chains, strict=True))

    def new_state(self, batch: int) -> StreamState[Array]:
        """The state of `batch` streams before their first frame."""
        return StreamState(np.zeros(batch, np.int64), [chain.new_state(batch) for chain in self._chains])

    def decode_chunk(self, frames: Array, state: StreamState[Array]) -> Array:
        """Frames [B, K, n] and the streams' state, which moves on -> samples [B, m]."""
        return self._decode(frames, state, frames.shape[-1])

    def prime(self, frames: Array, state: StreamState[Array]) -> None:
        """Move fresh streams on over frames whose audio is not wanted."""
        self.decode_chunk(frames, state)

    def _decode(self, frames: Array, state: StreamState[Array], kept: int) -> Array:
        """The samples of the last `kept` frames; the last chain does not read the others."""
        *before, last = self._chains
        *rates, rate = self.rates
        *pasts, past = state.buffers
        count, x, buffers = frames.shape[-1], self.rows(frames), []
        for chain, each, own in zip(before, rates, pasts, strict=True):
            x, moved = chain(x, own, state.position * each)
            buffers.append(moved)
        size, samples = max(1, self.piece_frames // len(x)), []
        for begin in range(max(0, count - kept), count, size):
            piece = x[:, begin * rate : (begin + size) * rate]
            waveform, past = last(piece, past, (state.position + begin) * rate)
            samples.append(self.bound(waveform[..., 0]))
        state.position, state.buffers = state.position + count, [*buffers, past]
        return np.concatenate(samples, axis=-1)


class NativeWindowedDecoder(NativeDecoder):
    """As `WindowedDecoder`."""

    @property
    def receptive_field(self) -> int:
        """As of `WindowedDecoder`."""
        return self._chains[-1].frames_back

    def prime(self, frames: Array, state: StreamState[Array]) -> None:
        """As of `WindowedDecoder`."""
        self._decode(frames, state, self.receptive_field)
