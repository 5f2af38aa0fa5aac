"""The AudioVAE's encoder: a 16 kHz waveform to frames of latents, in torch; native_audio_encoder.py computes on a CPU.

It has only causal convolutions, so a clip is encoded piece by piece, and memory does not grow with it.
Source: voxcpm 2.0.3, `CausalEncoder`. The official code also computes variances; speech is made of the means.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voice_clone.codec.native_chains import add_convolution, add_units, snake_of, units
from voice_clone.families.voxcpm2.audio_vae_config import LATENTS, PIECE_FRAMES, WIDTH, AudioVAEConfig
from voice_clone.layers.convolution import CausalConv1d
from voice_clone.layers.streaming import ChunkPass, in_pieces
from voice_clone.layers.vocoder import EncoderBlock, Snake
from voice_clone.native.codec.chain import Chain
from voice_clone.native.codec.chain_builder import ChainBuilder


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
        self.frame_samples = config.clip_samples

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
        samples = waveform.to(like.device, like.dtype)[None, None]
        pieces = in_pieces(self, samples, PIECE_FRAMES * self.frame_samples)
        latents = torch.cat([self(piece, stream) for piece, stream, _ in pieces], dim=-1)  # [1, latent, steps]
        return latents[0].T.reshape(-1, WIDTH)

    @torch.no_grad()
    def chain(self) -> Chain:
        """Build the same network as native code; it takes the weights out of this one."""
        chain = ChainBuilder(1, self.frame_samples // LATENTS)
        first, *rest = self.block
        blocks = [block for block in rest if isinstance(block, EncoderBlock)]
        begins = [snake_of(units(block.block)[0].act1) for block in blocks]
        add_convolution(chain, first, begins[0], residual="set")
        for block, following in zip(blocks, [*begins[1:], None], strict=True):
            *_, snake, convolution = block.block
            add_units(chain, units(block.block), snake_of(snake))
            add_convolution(chain, convolution, following, residual="untouched" if following is None else "set")
        add_convolution(chain, self.fc_mu)
        return chain.build()
