"""Frames of latents to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from voice_clone import compute
from voice_clone.batching.source import PayloadForm
from voice_clone.codec.chunk import Reference
from voice_clone.codec.decoder import CodecFormat
from voice_clone.families.voxcpm2.audio_vae_checkpoint import AudioVAECheckpoint
from voice_clone.families.voxcpm2.audio_vae_config import (
    AUDIO_VAE,
    CONTEXT_FRAMES,
    PROMPT_LATENTS,
    WIDTH,
    AudioVAEConfig,
)
from voice_clone.families.voxcpm2.family import CARD
from voice_clone.families.voxcpm2.networks.audio_decoder import AudioDecoder, NativeAudioDecoder
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speakers.record import IN_CONTEXT, ArtifactId
from voice_clone.speakers.store import KnownVoices
from voice_clone.stages.decoder import DecoderNetwork, StreamDecoderStage
from voice_clone.stages.known_voices import known_artifacts

ARTIFACT = ArtifactId(CARD.name, IN_CONTEXT)


def codec_format(config: AudioVAEConfig) -> CodecFormat:
    """The frames of a checkpoint's AudioVAE: latents."""
    return CodecFormat(PayloadForm(WIDTH, np.float32), config.frame_samples, config.out_sample_rate)


def load_torch_decoder(given: Settings) -> tuple[AudioDecoder, AudioVAEConfig]:
    """The decoder as torch's network, and its sizes; the native decoder is made from it."""
    settings = DecoderSettings.of(given)
    checkpoint = _checkpoint(settings)
    return _network(checkpoint).load(settings), checkpoint.config


def _checkpoint(settings: DecoderSettings) -> AudioVAECheckpoint:
    checkpoint = AudioVAECheckpoint(settings.checkpoint_dir)
    checkpoint.check()
    return checkpoint


def _network(checkpoint: AudioVAECheckpoint) -> DecoderNetwork[AudioDecoder]:
    return DecoderNetwork(checkpoint, AUDIO_VAE, "", lambda: AudioDecoder(checkpoint.config))


def references(voices: KnownVoices) -> Iterator[Reference]:
    """What is heard before a stream that goes on with the clip of a stored voice."""
    for record, artifacts in known_artifacts(voices, ARTIFACT, [PROMPT_LATENTS]):
        yield Reference(artifacts[PROMPT_LATENTS][-CONTEXT_FRAMES:], origin=record.origin)


def load_decoder(given: Settings) -> StreamDecoderStage:
    """The decoder stage as the settings ask for it: native code on a CPU, torch on a GPU.

    A stream that goes on with a prompt is decoded behind the prompt's last frames, as the official code does it for a
    whole speech.
    """
    settings = DecoderSettings.of(given)
    checkpoint = _checkpoint(settings)
    network, form = _network(checkpoint), codec_format(checkpoint.config)
    if compute.device(settings) == "cpu":
        native = network.load_native(settings, CARD.name, checkpoint.config, NativeAudioDecoder)
        return StreamDecoderStage(native, form, CARD.chunk_frames, references)
    return StreamDecoderStage(network.load(settings), form, CARD.chunk_frames, references)
