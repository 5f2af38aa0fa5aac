"""A `WindowedDecoder` as native code. Used on a CPU."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from voice_clone.layers.streaming import StreamState
from voice_clone.native.codec.chain import Chain

PIECE_FRAMES = 24  # decoded at once, of all streams together: more would take more memory and be no faster


class NativeWindowedDecoder(ABC):
    """As `WindowedDecoder`, as far as streams need it; fp32.

    A stream's samples are the same, bit for bit, in chunks of any size and beside any other streams.

    Args:
        latent, waveform: the chains; `memory`: as of `WindowedDecoder`.
    """

    padded = False
    any_shape = True

    def __init__(self, latent: Chain, waveform: Chain, memory: int) -> None:
        self.memory = memory
        self._latent, self._waveform = latent, waveform

    @abstractmethod
    def vectors(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, K, n] -> what the chain to the latent reads, [B, n, C]."""

    @abstractmethod
    def bound(self, samples: Tensor) -> Tensor:
        """As of `WindowedDecoder`."""

    @property
    def device(self) -> torch.device:
        """Where codes are expected and states lie."""
        return torch.device("cpu")

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return self._latent.nbytes + self._waveform.nbytes

    @property
    def multiplications(self) -> int:
        """Of a frame, in products; less than the layers' definition has, by those that Winograd convolutions save."""
        return self._latent.multiplications + self._waveform.multiplications

    @torch.inference_mode()
    def new_state(self, batch: int) -> StreamState:
        """The state of `batch` streams before their first frame."""
        position = torch.zeros(batch, dtype=torch.int64)
        return StreamState(position, [self._latent.new_state(batch), self._waveform.new_state(batch)])

    @torch.inference_mode()
    def decode_chunk(self, codes: Tensor, state: StreamState) -> Tensor:
        """int64 [B, K, n] and the streams' state, which moves on -> samples; as `WindowedDecoder.decode_chunk`."""
        return self._decode(codes, state, codes.shape[-1])

    @torch.inference_mode()
    def prime(self, codes: Tensor, state: StreamState) -> None:
        """Move fresh streams on over frames whose audio is not wanted; as `WindowedDecoder.prime`."""
        self._decode(codes, state, self.memory)

    def _decode(self, codes: Tensor, state: StreamState, kept: int) -> Tensor:
        """The samples of the last `kept` frames."""
        latent, past = state.buffers
        x, latent = self._latent(self.vectors(codes), latent, state.position)
        samples = []
        for piece in torch.split(x[:, -kept:], max(1, PIECE_FRAMES // len(x)), dim=1):
            waveform, past = self._waveform(piece, past, state.position)
            samples.append(self.bound(waveform[..., 0]))
        state.position, state.buffers = state.position + codes.shape[-1], [latent, past]
        return torch.cat(samples, dim=-1)
