"""Frames of latents to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import CodecFormat
from voice_clone.families.voxcpm2.audio_vae_checkpoint import AudioVAECheckpoint
from voice_clone.families.voxcpm2.audio_vae_config import AUDIO_VAE, CONTEXT_FRAMES, WIDTH, AudioVAEConfig
from voice_clone.families.voxcpm2.family import CARD
from voice_clone.families.voxcpm2.networks.native_audio_decoder import NativeAudioDecoder
from voice_clone.stages.decoder import CardDecoder, DecoderNetwork

if TYPE_CHECKING:  # a stage that finds its weights packed does without torch
    from voice_clone.families.voxcpm2.networks.audio_decoder import AudioDecoder


def codec_format(config: AudioVAEConfig) -> CodecFormat:
    return CodecFormat(PayloadForm(WIDTH, np.float32), config.frame_samples, config.out_sample_rate)


class VoxCPM2Decoder(CardDecoder):
    """A stream that goes on with a prompt is decoded behind the prompt's last frames, as a whole official one is."""

    card, heard_frames = CARD, CONTEXT_FRAMES

    @staticmethod
    def network(folder: Path) -> DecoderNetwork[AudioDecoder]:
        checkpoint = AudioVAECheckpoint(folder)
        config = checkpoint.config

        def make() -> AudioDecoder:
            from voice_clone.families.voxcpm2.networks.audio_decoder import AudioDecoder

            checkpoint.check()
            return AudioDecoder(config)

        return DecoderNetwork(checkpoint, AUDIO_VAE, "", make, codec_format(config), config, NativeAudioDecoder)


load_decoder, load_torch_decoder = VoxCPM2Decoder.load, VoxCPM2Decoder.load_torch
