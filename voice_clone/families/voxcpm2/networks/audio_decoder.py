"""code2wav: frames of latents to a 48 kHz waveform, exactly and incrementally, in torch and, for a CPU, as native code.

A Snake vocoder whose dilated convolutions keep the channels apart, with a scale and a bias before each block that
depend on the output rate. A frame is four latents.
Source: voxcpm 2.0.3, `CausalDecoder`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from voice_clone.codec.decoder import StreamDecoder, StreamState
from voice_clone.codec.native_chains import add_vocoder
from voice_clone.codec.windowed_decoder import StreamingDecoder
from voice_clone.families.voxcpm2.audio_vae_config import LATENT_SIZE, LATENTS, AudioVAEConfig
from voice_clone.layers.convolution import CausalConv1d
from voice_clone.layers.streaming import ChunkPass
from voice_clone.layers.vocoder import Snake, Vocoder
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain import Chain
from voice_clone.native.codec.chain_builder import ChainBuilder
from voice_clone.native.packed_file import NOWHERE, PackedFile

PIECE_LATENTS = 24  # decoded at once natively, of all streams together: more would take more memory and be no faster


class AudioDecoder(StreamingDecoder):
    """Frames of latents to speech."""

    def __init__(self, config: AudioVAEConfig) -> None:
        super().__init__()
        self.decoder = Vocoder(
            config.latent_dim, config.decoder_dim, config.decoder_rates, Snake, depthwise=True, affine=True
        )

    @property
    def device(self) -> torch.device:
        return self._last.conv.weight.device

    @property
    def _last(self) -> CausalConv1d:
        last = self.decoder[-1]
        assert isinstance(last, CausalConv1d)
        return last

    def samples(self, codes: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        """Frames float [B, 256, n] -> samples [B, m] in -1..1."""
        latents = torch.unflatten(codes.to(self._last.conv.weight.dtype), 1, (LATENTS, LATENT_SIZE))  # [B, 4, 64, n]
        waveform: Tensor = self.decoder(latents.permute(0, 2, 3, 1).flatten(2), stream)
        return waveform.squeeze(1).tanh()


class NativeAudioDecoder(StreamDecoder[Array]):
    """As `AudioDecoder`; fp32.

    A stream's samples are the same, bit for bit, in chunks of any size and beside any other streams.

    Args:
        load: the same decoder at each call, on the CPU; called if its weights are not found packed. They are packed
            one after the other and given up.
        packed: finds the packed weights and keeps them.
    """

    any_shape = True

    @torch.no_grad()
    def __init__(self, load: Callable[[], AudioDecoder], packed: PackedFile = NOWHERE) -> None:
        self._waveform = Chain.restored(packed.part("waveform")(lambda: _chain(load()).arrays))
        packed.keep()

    @property
    def device(self) -> None:
        """In numpy's arrays."""

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return self._waveform.nbytes

    @property
    def multiplications(self) -> int:
        """Of a frame, in products."""
        return LATENTS * self._waveform.multiplications

    def new_state(self, batch: int) -> StreamState[Array]:
        return StreamState(np.zeros(batch, np.int64), [self._waveform.new_state(batch)])

    def decode_chunk(self, frames: Array, state: StreamState[Array]) -> Array:
        """As of `StreamDecoder`: float32 [B, 256, n] -> samples [B, m]."""
        batch, _, count = frames.shape
        latents = frames.transpose(0, 2, 1).reshape(batch, count * LATENTS, LATENT_SIZE)
        [past], size, samples = state.buffers, max(1, PIECE_LATENTS // batch), []
        for begin in range(0, latents.shape[1], size):
            waveform, past = self._waveform(latents[:, begin : begin + size], past, state.position)
            samples.append(torch.from_numpy(waveform[..., 0].copy()).tanh().numpy())
        state.position, state.buffers = state.position + count, [past]
        return np.concatenate(samples, axis=-1)

    def prime(self, frames: Array, state: StreamState[Array]) -> None:
        self.decode_chunk(frames, state)


def _chain(decoder: AudioDecoder) -> Chain:
    """From a latent to samples before they are bound."""
    chain = ChainBuilder(LATENT_SIZE)
    add_vocoder(chain, decoder.decoder)
    return chain.build()
