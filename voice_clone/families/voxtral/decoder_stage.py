"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

import numpy as np

from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import CodecFormat
from voice_clone.families.voxtral.checkpoint import CODEC, Checkpoint
from voice_clone.families.voxtral.config import MODEL, VoxtralConfig
from voice_clone.families.voxtral.family import CARD
from voice_clone.families.voxtral.networks.codec import CodecDecoder
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.stages.decoder import DecoderNetwork, StreamDecoderStage


def codec_format(config: VoxtralConfig) -> CodecFormat:
    """The frames of a checkpoint's codec."""
    limits, codec = config.code_limits, config.codec
    return CodecFormat(PayloadForm(len(limits), np.uint16), codec.frame_samples, codec.sampling_rate, limits)


def load_torch_decoder(given: Settings) -> tuple[CodecDecoder, VoxtralConfig]:
    """The network and the checkpoint's configuration."""
    settings = DecoderSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    network = DecoderNetwork(checkpoint, MODEL, CODEC, lambda: CodecDecoder(checkpoint.config.codec))
    return network.load(settings), checkpoint.config


def load_decoder(given: Settings) -> StreamDecoderStage:
    """The decoder stage as the settings ask for it, in torch.

    A stream is decoded without its voice's clip, as the official code does it.
    """
    decoder, config = load_torch_decoder(given)
    return StreamDecoderStage(decoder, codec_format(config), CARD.chunk_frames)
