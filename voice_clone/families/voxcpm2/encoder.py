"""A clip to the artifacts of its voice: a `voice_clone.stages.protocols.EncoderStage`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.families.voxcpm2.audio_vae_checkpoint import ENCODER, AudioVAECheckpoint
from voice_clone.families.voxcpm2.audio_vae_config import (
    AUDIO_VAE,
    PROMPT_LATENTS,
    REFERENCE_LATENTS,
    WIDTH,
    AudioVAEConfig,
)
from voice_clone.families.voxcpm2.family import CARD
from voice_clone.families.voxcpm2.networks.native_audio_encoder import NativeAudioEncoder
from voice_clone.families.voxcpm2.options import REFERENCE
from voice_clone.stages.encoder import CardEncoder
from voice_clone.stages.protocols import Arrays, Limit, check_clip

if TYPE_CHECKING:  # a stage that finds its weights packed does without torch
    from voice_clone.families.voxcpm2.networks.audio_encoder import AudioEncoder


class VoxCPM2Encoder(CardEncoder[AudioVAEConfig]):
    """Waveform to frames of latents, float32 [frames, 256].

    The last frame of a reference is filled with silence behind the clip, the first one of a prompt with silence before
    the clip, so that speech goes on where it ends. All their frames therefore differ.
    """

    card, files, file, prefix, width = CARD, AudioVAECheckpoint, AUDIO_VAE, ENCODER, WIDTH
    native = NativeAudioEncoder

    @property
    def sample_rate(self) -> int:
        return self.config.sample_rate

    @classmethod
    def identity(cls, config: AudioVAEConfig) -> dict[str, Any]:
        return {"encoder": cls.card.name}

    @staticmethod
    def empty_network(checkpoint: AudioVAECheckpoint) -> AudioEncoder:
        from voice_clone.families.voxcpm2.networks.audio_encoder import AudioEncoder

        checkpoint.check()
        return AudioEncoder(checkpoint.config)

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """Latents may be any numbers; a prompt has as many frames as the reference, or none."""
        rows = (1, self.max_frames)
        return {
            REFERENCE_LATENTS: Limit(None, rows),
            PROMPT_LATENTS: Limit(None, (0, 0) if mode == REFERENCE else rows),
        }

    def artifacts(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        """The latents of a clip as a reference and, but in the mode `reference`, as a prompt."""
        missing = -waveform.size % self.config.clip_samples
        check_clip((waveform.size + missing) // self.config.clip_samples, self.max_frames)
        reference = prompt = self.frames(np.pad(waveform, (0, missing)))
        if mode == REFERENCE:
            prompt = reference[:0]
        elif missing:
            prompt = self.frames(np.pad(waveform, (missing, 0)))
        return {REFERENCE_LATENTS: reference, PROMPT_LATENTS: prompt}


load_encoder = VoxCPM2Encoder.load
