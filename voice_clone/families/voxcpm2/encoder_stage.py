"""A clip to the artifacts of its voice: a `voice_clone.stages.protocols.EncoderStage`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from voice_clone import compute
from voice_clone.families.voxcpm2.audio_vae_checkpoint import ENCODER, AudioVAECheckpoint
from voice_clone.families.voxcpm2.audio_vae_config import (
    AUDIO_VAE,
    PROMPT_LATENTS,
    REFERENCE_LATENTS,
    WIDTH,
    AudioVAEConfig,
)
from voice_clone.families.voxcpm2.family import CARD
from voice_clone.families.voxcpm2.networks.audio_encoder import AudioEncoder, NativeAudioEncoder
from voice_clone.families.voxcpm2.options import REFERENCE
from voice_clone.native.thread_pool import leave_threads_to_native_code
from voice_clone.settings import EncoderSettings, Settings
from voice_clone.stages.loading import empty, load_encoder_network
from voice_clone.stages.protocols import Arrays, Call, Limit, check_clip


class VoxCPM2Encoder:
    """Waveform to frames of latents, float32 [frames, 256].

    The last frame of a reference is filled with silence behind the clip, the first one of a prompt with silence before
    the clip, so that speech goes on where it ends. All their frames therefore differ.

    Args:
        max_frames: of a clip.
    """

    modes = CARD.modes
    presets = ()

    def __init__(
        self, encoder: AudioEncoder | NativeAudioEncoder, config: AudioVAEConfig, fingerprint: str, max_frames: int
    ) -> None:
        self._encoder = encoder
        self._samples = config.clip_samples
        self._max_frames = max_frames
        self.sample_rate = config.sample_rate
        self.fingerprints = {"fingerprint": fingerprint}

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """Latents may be any numbers; a prompt has as many frames as the reference, or none."""
        rows = (1, self._max_frames)
        return {
            REFERENCE_LATENTS: Limit(None, rows),
            PROMPT_LATENTS: Limit(None, (0, 0) if mode == REFERENCE else rows),
        }

    def encode(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        """The latents of a clip as a reference and, but in the mode `reference`, as a prompt."""
        nothing = np.zeros((0, WIDTH), np.float32)
        if waveform.size == 0:
            return {REFERENCE_LATENTS: nothing, PROMPT_LATENTS: nothing}
        missing = -waveform.size % self._samples
        check_clip((waveform.size + missing) // self._samples, self._max_frames)
        reference = self._frames(np.pad(waveform, (0, missing)))
        if mode == REFERENCE:
            prompt = nothing
        else:
            prompt = self._frames(np.pad(waveform, (missing, 0))) if missing else reference
        return {REFERENCE_LATENTS: reference, PROMPT_LATENTS: prompt}

    def _frames(self, waveform: NDArray[np.float32]) -> NDArray[np.float32]:
        frames: NDArray[np.float32] = self._encoder.encode(torch.from_numpy(waveform)).cpu().numpy()
        return frames


def load_encoder(given: Settings, call: Call | None = None) -> VoxCPM2Encoder:
    """As the settings ask for it: native code on a CPU, torch on a GPU."""
    settings = EncoderSettings.of(given)
    checkpoint = AudioVAECheckpoint(settings.checkpoint_dir)
    checkpoint.check()
    empty_encoder = empty(lambda: AudioEncoder(checkpoint.config))
    fingerprint = checkpoint.encoder_fingerprint(empty_encoder)
    network = load_encoder_network(settings, empty_encoder, checkpoint, AUDIO_VAE, ENCODER)
    if compute.device(settings) != "cpu":
        return VoxCPM2Encoder(network, checkpoint.config, fingerprint, settings.max_chunk_frames)
    native = NativeAudioEncoder(network)
    leave_threads_to_native_code()
    native.encode(torch.zeros(checkpoint.config.clip_samples))  # compiles it where no earlier process has
    return VoxCPM2Encoder(native, checkpoint.config, fingerprint, settings.max_chunk_frames)
