"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

import numpy as np

from voice_clone import compute
from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import CodecFormat
from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone.families.fish_speech.config import CODEC, FRAME_SAMPLES, SAMPLE_RATE, CodecConfig
from voice_clone.families.fish_speech.family import CARD
from voice_clone.families.fish_speech.networks.codec_decoder import CodecDecoder, NativeCodecDecoder
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.stages.decoder import DecoderNetwork, StreamDecoderStage


def codec_format(codec: CodecConfig) -> CodecFormat:
    """The frames of a checkpoint's codec."""
    limits = codec.code_limits
    return CodecFormat(PayloadForm(len(limits), np.uint16), FRAME_SAMPLES, SAMPLE_RATE, limits)


def load_torch_decoder(given: Settings) -> tuple[CodecDecoder, CodecConfig]:
    """The decoder as torch's network, and its sizes; the native decoder is made from it."""
    settings = DecoderSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    return _network(checkpoint).load(settings), checkpoint.codec


def _network(checkpoint: Checkpoint) -> DecoderNetwork[CodecDecoder]:
    return DecoderNetwork(checkpoint, CODEC, "", lambda: CodecDecoder(checkpoint.codec))


def load_decoder(given: Settings) -> StreamDecoderStage:
    """The decoder stage as the settings ask for it: native code on a CPU, torch on a GPU.

    A stream is decoded without its reference, as the official code does it.
    """
    settings = DecoderSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    network, form = _network(checkpoint), codec_format(checkpoint.codec)
    if compute.device(settings) == "cpu":
        native = network.load_native(settings, CARD.name, checkpoint.codec, NativeCodecDecoder)
        return StreamDecoderStage(native, form, CARD.chunk_frames)
    return StreamDecoderStage(network.load(settings), form, CARD.chunk_frames)
