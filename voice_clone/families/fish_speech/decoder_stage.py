"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import CodecFormat
from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone.families.fish_speech.config import CODEC, FRAME_SAMPLES, SAMPLE_RATE, CodecConfig
from voice_clone.families.fish_speech.family import CARD
from voice_clone.families.fish_speech.networks.codec_decoder import CodecDecoder, NativeCodecDecoder
from voice_clone.stages.decoder import CardDecoder, DecoderNetwork


def codec_format(codec: CodecConfig) -> CodecFormat:
    """The frames of a checkpoint's codec."""
    limits = codec.code_limits
    return CodecFormat(PayloadForm(len(limits), np.uint16), FRAME_SAMPLES, SAMPLE_RATE, limits)


class FishSpeechDecoder(CardDecoder):
    """A stream is decoded without its reference, as the official code does it."""

    card = CARD

    @staticmethod
    def network(folder: Path) -> DecoderNetwork[CodecDecoder]:
        checkpoint = Checkpoint(folder)
        codec = checkpoint.codec
        make, form = lambda: CodecDecoder(codec), codec_format(codec)
        return DecoderNetwork(checkpoint, CODEC, "", make, form, codec, NativeCodecDecoder)


load_decoder, load_torch_decoder = FishSpeechDecoder.load, FishSpeechDecoder.load_torch
