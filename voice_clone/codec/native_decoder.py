"""A `WindowedDecoder` as native code. Used on a CPU. It computes without torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from voice_clone.codec.decoder import StreamDecoder, StreamState
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain import Chain
from voice_clone.native.packed_file import PackedFile

if TYPE_CHECKING:  # a process that finds the weights packed does without torch
    from voice_clone.codec.windowed_decoder import WindowedDecoder

PIECE_FRAMES = 24  # decoded at once, of all streams together: more would take more memory and be no faster


class NativeWindowedDecoder(StreamDecoder[Array]):
    """As `WindowedDecoder`, as far as streams need it; fp32.

    A stream's samples are the same, bit for bit, in chunks of any size and beside any other streams.

    Args:
        load: the same decoder in torch at each call, on the CPU; called if its weights are not found packed. They are
            packed one after the other and given up.
        packed: finds the packed weights and keeps them.
    """

    any_shape = True

    def __init__(self, load: Callable[[], WindowedDecoder], packed: PackedFile) -> None:
        self._latent = Chain.restored(packed.part("latent")(lambda: load().latent_chain().arrays))
        self._waveform = Chain.restored(packed.part("waveform")(lambda: load().waveform_chain().arrays))
        [field] = packed.part("receptive field")(lambda: [np.array([load().receptive_field])])
        self.receptive_field = int(field[0])
        packed.keep()

    @abstractmethod
    def vectors(self, codes: Array) -> Array:
        """Codes int64 [B, K, n] -> what the chain to the latent reads, [B, n, C]."""

    @abstractmethod
    def bound(self, samples: Array) -> Array:
        """As of `WindowedDecoder`."""

    @property
    def device(self) -> None:
        """In numpy's arrays."""

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return self._latent.nbytes + self._waveform.nbytes

    @property
    def multiplications(self) -> int:
        """Of a frame, in products; less than the layers' definition has, by those that Winograd convolutions save."""
        return self._latent.multiplications + self._waveform.multiplications

    def new_state(self, batch: int) -> StreamState[Array]:
        """The state of `batch` streams before their first frame."""
        position = np.zeros(batch, np.int64)
        return StreamState(position, [self._latent.new_state(batch), self._waveform.new_state(batch)])

    def decode_chunk(self, codes: Array, state: StreamState[Array]) -> Array:
        """int64 [B, K, n] and the streams' state, which moves on -> samples; as `WindowedDecoder.decode_chunk`."""
        return self._decode(codes, state, codes.shape[-1])

    def prime(self, codes: Array, state: StreamState[Array]) -> None:
        """Move fresh streams on over frames whose audio is not wanted; as `WindowedDecoder.prime`."""
        self._decode(codes, state, self.receptive_field)

    def _decode(self, codes: Array, state: StreamState[Array], kept: int) -> Array:
        """The samples of the last `kept` frames."""
        latent, past = state.buffers
        x, latent = self._latent(self.vectors(codes), latent, state.position)
        x, size, samples = x[:, -kept:], max(1, PIECE_FRAMES // len(x)), []
        for begin in range(0, x.shape[1], size):
            piece = x[:, begin : begin + size]
            waveform, past = self._waveform(piece, past, state.position)
            samples.append(self.bound(waveform[..., 0]))
        state.position, state.buffers = state.position + codes.shape[-1], [latent, past]
        return np.concatenate(samples, axis=-1)
