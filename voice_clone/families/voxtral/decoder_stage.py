"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import CodecFormat
from voice_clone.families.voxtral.checkpoint import CODEC, Checkpoint
from voice_clone.families.voxtral.config import MODEL, VoxtralConfig
from voice_clone.families.voxtral.family import CARD
from voice_clone.families.voxtral.networks.codec import CodecDecoder
from voice_clone.stages.decoder import CardDecoder, DecoderNetwork


def codec_format(config: VoxtralConfig) -> CodecFormat:
    """The frames of a checkpoint's codec."""
    limits, codec = config.code_limits, config.codec
    return CodecFormat(PayloadForm(len(limits), np.uint16), codec.frame_samples, codec.sampling_rate, limits)


class VoxtralDecoder(CardDecoder):
    """In torch. A stream is decoded without its voice's clip, as the official code does it."""

    card = CARD

    @staticmethod
    def network(folder: Path) -> DecoderNetwork[CodecDecoder]:
        checkpoint = Checkpoint(folder)
        config = checkpoint.config
        return DecoderNetwork(checkpoint, MODEL, CODEC, lambda: CodecDecoder(config.codec), codec_format(config))


load_decoder, load_torch_decoder = VoxtralDecoder.load, VoxtralDecoder.load_torch
