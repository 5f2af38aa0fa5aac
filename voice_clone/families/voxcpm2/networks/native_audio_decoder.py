"""As audio_decoder.py, in native code for a CPU. It computes without torch."""

from __future__ import annotations

from voice_clone.codec.native_decoder import NativeDecoder, tanh
from voice_clone.families.voxcpm2.audio_vae_config import LATENT_SIZE, LATENTS
from voice_clone.native.arrays import Array


class NativeAudioDecoder(NativeDecoder):
    """As `AudioDecoder`."""

    parts, rates, piece_frames = ("waveform",), (LATENTS,), 6

    def rows(self, frames: Array) -> Array:
        """The latents of each frame one behind the other."""
        batch, _, count = frames.shape
        return frames.transpose(0, 2, 1).reshape(batch, count * LATENTS, LATENT_SIZE)

    def bound(self, samples: Array) -> Array:
        return tanh(samples)
