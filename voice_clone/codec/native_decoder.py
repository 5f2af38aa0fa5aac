"""Decoders in native code for a CPU: sequences of chains of layers. They compute without torch."""

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
    """Compute tanh of float32 numbers. It is rounded once, so it is the same on all processors."""
    found: Array = np.tanh(x, dtype=np.float64).astype(np.float32)
    return found


class NativeDecoder(StreamDecoder[Array]):
    """A decoder in fp32 that has of torch's decoders what streams need.

    A stream's samples are the same, bit for bit, in chunks of any size and beside any other streams.

    Args:
        load: returns an object with the decoder's weights, such as the same decoder in torch on the CPU. It is called
            if no packed weights are found. Weights are packed one after the other, and then freed.
        packed: finds the packed weights and keeps them.

    Attributes:
        parts: the names of the chains. Each reads what the chain before makes. The object with the weights builds one
            by its method `PART_chain`.
        rates: rows of a frame that each chain reads.
        piece_frames: frames of all streams together that the last chain decodes at once. More would take more memory
            and be hardly faster.
    """

    any_shape = True
    parts: ClassVar[tuple[str, ...]] = ("latent", "waveform")
    rates: Sequence[int] = (1, 1)
    piece_frames: ClassVar[int] = 8

    def __init__(self, load: Callable[[], Any], packed: PackedFile = NOWHERE) -> None:
        def arrays(part: str) -> list[Array]:
            return packed.part(part)(lambda: getattr(load(), f"{part}_chain")().arrays)

        self.chains = [Chain.restored(arrays(part)) for part in self.parts]
        self.chains[-1].usual_frames = self.piece_frames * self.rates[-1]
        packed.keep()

    @abstractmethod
    def rows(self, frames: Array) -> Array:
        """Turn frames [B, K, n] into the rows that the first chain reads, [B, n * rate, C]."""

    @abstractmethod
    def bound(self, samples: Array) -> Array:
        """Turn what the last chain makes, [B, samples], into samples in -1..1. The next piece overwrites it."""

    @property
    def device(self) -> None:
        """In numpy's arrays."""

    @property
    def nbytes(self) -> int:
        return sum(chain.nbytes for chain in self.chains)

    @property
    def multiplications(self) -> int:
        """Multiplications of a frame, without those that Winograd convolutions save."""
        return sum(rate * chain.multiplications for rate, chain in zip(self.rates, self.chains, strict=True))

    def new_state(self, batch: int) -> StreamState[Array]:
        return StreamState(np.zeros(batch, np.int64), [chain.new_state(batch) for chain in self.chains])

    def decode_chunk(self, frames: Array, state: StreamState[Array]) -> Array:
        return self._decode(frames, state, frames.shape[-1])

    def prime(self, frames: Array, state: StreamState[Array]) -> None:
        self.decode_chunk(frames, state)

    def _decode(self, frames: Array, state: StreamState[Array], kept: int) -> Array:
        """Return the samples of the last `kept` frames. The last chain does not read the others."""
        *before, last = self.chains
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
            samples.append(self.bound(waveform.reshape(len(x), -1)))
        state.position, state.buffers = state.position + count, [*buffers, past]
        return np.concatenate(samples, axis=-1)


class NativeWindowedDecoder(NativeDecoder):
    """As `WindowedDecoder`."""

    @property
    def receptive_field(self) -> int:
        return self.chains[-1].frames_back

    def prime(self, frames: Array, state: StreamState[Array]) -> None:
        self._decode(frames, state, self.receptive_field)
