"""Codec decoders in torch that stream exactly; among them those of one build, a transformer over a window, ConvNeXt
upsampling and a convolutional vocoder.

Every part is causal, so a stream may be decoded in chunks of any size: the chunks joined equal the decode of all frames
at once, and the work depends on the new frames alone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property

import torch
from torch import Tensor, nn

from voice_clone.codec.decoder import RaggedDecoder, StreamState
from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d
from voice_clone.layers.streaming import ChunkPass, StreamingModule, streaming_slots
from voice_clone.layers.vocoder import Vocoder


class StreamingDecoder(nn.Module, RaggedDecoder):
    """A `RaggedDecoder` in torch whose state is that of its `StreamingModule`s."""

    any_shape = False

    @abstractmethod
    def samples(self, codes: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        """Codes [B, K, n] at the frame `position` int64 [B] of each stream -> samples [B, m] in -1..1."""

    def forward(self, codes: Tensor) -> Tensor:
        """All codes at once: int64 [B, K, T] -> waveform [B, T * samples of a frame] in -1..1."""
        return self.decode_chunk(codes, self.new_state(codes.shape[0]))

    @cached_property
    def slots(self) -> dict[StreamingModule, int]:
        """The place of each module's buffer in a state."""
        return streaming_slots(self)

    @torch.inference_mode()
    def new_state(self, batch: int) -> StreamState[Tensor]:
        buffers = [module.new_state(batch) for module in self.slots]
        return StreamState(torch.zeros(batch, dtype=torch.int64, device=buffers[0].device), buffers)

    @torch.inference_mode()
    def decode_chunk(self, codes: Tensor, state: StreamState[Tensor], lengths: Tensor | None = None) -> Tensor:
        stream = ChunkPass(self.slots, state.buffers, lengths, codes.shape[-1])
        waveform = self.samples(codes, stream, state.position)
        moved = codes.shape[-1] if lengths is None else lengths
        state.position, state.buffers = state.position + moved, stream.buffers
        return waveform

    def prime(self, codes: Tensor, state: StreamState[Tensor]) -> None:
        self.decode_chunk(codes, state)


class WindowedDecoder(StreamingDecoder):
    """A decoder of that build, as far as all of them share it.

    Attributes:
        upsample: `Upsample`s, from the rate of frames on.
        decoder: behind them.
    """

    upsample: nn.ModuleList
    decoder: Vocoder

    @abstractmethod
    def latent(self, codes: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        """Codes [B, K, n] -> latent [B, latent, n]."""

    @abstractmethod
    def bound(self, waveform: Tensor) -> Tensor:
        """The vocoder's output [B, samples] -> samples in -1..1."""

    def samples(self, codes: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        return self.bound(self.waveform(self.latent(codes, stream, position), stream))

    @torch.inference_mode()
    def prime(self, codes: Tensor, state: StreamState[Tensor]) -> None:
        """As of `StreamingDecoder`.

        The transformer must see all frames, but the convolutions behind it remember few, and they are nearly all of
        the work: they run over the last `receptive_field` frames alone. The state equals that after `decode_chunk`.
        """
        stream = ChunkPass(self.slots, state.buffers)
        latent = self.latent(codes, stream, state.position)
        self.waveform(latent[..., -self.receptive_field :], stream)
        state.position, state.buffers = state.position + codes.shape[-1], stream.buffers

    @cached_property
    def receptive_field(self) -> int:
        """How many frames back the convolutions behind the transformer look."""
        frames, rate = 0.0, 1.0  # rate: steps of the signal a frame
        for upsampled in (self.upsample, self.decoder):
            for module in upsampled.modules():
                if isinstance(module, CausalConvTranspose1d):
                    frames += (module.conv.kernel_size[0] / module.conv.stride[0] - 1) / rate
                    rate *= module.conv.stride[0]
                elif isinstance(module, CausalConv1d):
                    frames += (module.conv.kernel_size[0] - 1) * module.conv.dilation[0] / rate
        return math.ceil(frames)

    def waveform(self, latent: Tensor, stream: ChunkPass) -> Tensor:
        """Latent [B, latent, n] -> waveform [B, samples], unbounded."""
        hidden = latent
        for upsample in self.upsample:
            hidden = upsample(hidden, stream)
        waveform: Tensor = self.decoder(hidden, stream)
        return waveform.squeeze(1)
