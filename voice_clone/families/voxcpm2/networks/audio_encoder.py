"""The AudioVAE's encoder: a 16 kHz waveform to frames of latents.

Convolutions alone, all of them causal, so a clip is encoded piece by piece, and the memory does not grow with it.
Source: voxcpm 2.0.3, `CausalEncoder`. It also has a variance of the latents; speech is made of their means.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voice_clone.families.voxcpm2.audio_vae_config import WIDTH, AudioVAEConfig
from voice_clone.layers.convolution import CausalConv1d
from voice_clone.layers.streaming import ChunkPass, streaming_slots
from voice_clone.layers.vocoder import EncoderBlock, Snake

PIECE_FRAMES = 8  # encoded at once


class AudioEncoder(nn.Module):
    """16 kHz speech to frames."""

    def __init__(self, config: AudioVAEConfig) -> None:
        super().__init__()
        dim = config.encoder_dim
        self.block = nn.ModuleList([CausalConv1d(1, dim, 7)])
        for rate in config.encoder_rates:
            dim *= 2
            self.block.append(EncoderBlock(dim, rate, Snake, depthwise=True))
        self.fc_mu = CausalConv1d(dim, config.latent_dim, 3)
        self._samples = config.clip_samples

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        """Waveform [B, 1, T] -> latents [B, latent, T / 640]."""
        first, *blocks = self.block
        x = stream(first, x)
        for block in blocks:
            x = block(x, stream)
        return stream(self.fc_mu, x)

    @torch.inference_mode()
    def encode(self, waveform: Tensor) -> Tensor:
        """Frames of one clip.

        Args:
            waveform: float [T], mono; T is a multiple of a frame's samples, and not 0.

        Returns:
            float32 [T / samples of a frame, 256]: the latents of a frame one after the other.
        """
        like = self.fc_mu.conv.weight
        slots = streaming_slots(self)
        stream = ChunkPass(slots, [module.new_state(1) for module in slots])
        pieces = torch.split(waveform.to(like.device, like.dtype)[None, None], PIECE_FRAMES * self._samples, dim=-1)
        latents = torch.cat([self(piece, stream) for piece in pieces], dim=-1)  # [1, latent, steps]
        return latents[0].T.reshape(-1, WIDTH)
