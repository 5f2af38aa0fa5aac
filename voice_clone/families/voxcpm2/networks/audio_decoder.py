"""code2wav: frames of latents to a 48 kHz waveform, exactly and incrementally, in torch; native code for a CPU is in
native_audio_decoder.py.

A Snake vocoder whose dilated convolutions keep the channels apart, with a scale and a bias before each block that
depend on the output rate. A frame is four latents.
Source: voxcpm 2.0.3, `CausalDecoder`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from voice_clone.codec.native_chains import add_vocoder
from voice_clone.codec.windowed_decoder import StreamingDecoder
from voice_clone.families.voxcpm2.audio_vae_config import LATENT_SIZE, LATENTS, AudioVAEConfig
from voice_clone.layers.convolution import CausalConv1d
from voice_clone.layers.streaming import ChunkPass
from voice_clone.layers.vocoder import Snake, Vocoder
from voice_clone.native.codec.chain import Chain
from voice_clone.native.codec.chain_builder import ChainBuilder


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
        latents = torch.unflatten(codes.to(self._last.conv.weight.dtype), 1, (LATENTS, LATENT_SIZE))  # [B, 4, 64, n]
        waveform: Tensor = self.decoder(latents.permute(0, 2, 3, 1).flatten(2), stream)
        return waveform.squeeze(1).tanh()

    @torch.no_grad()
    def waveform_chain(self) -> Chain:
        """From a latent to samples before they are bound. It takes the weights away."""
        chain = ChainBuilder(LATENT_SIZE)
        add_vocoder(chain, self.decoder)
        return chain.build()
