"""Codec frames to audio: a `voice_clone.stages.DecoderStage`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from voice_clone import compute
from voice_clone.batching.payload import PayloadForm
from voice_clone.codec.chunk import Reference
from voice_clone.codec.decoder import CodecFormat
from voice_clone.codec.decoder_streams import StatefulStreams
from voice_clone.codec.loading import load_streams
from voice_clone.families.voxtral.checkpoint import CODEC, Checkpoint
from voice_clone.families.voxtral.config import CHUNK_FRAMES, MODEL, VoxtralConfig
from voice_clone.families.voxtral.networks.codec_decoder import CodecDecoder
from voice_clone.settings import Settings
from voice_clone.speakers.store.protocol import KnownVoices


class VoxtralDecoder:
    """The codec decoder of a checkpoint."""

    chunk_frames = CHUNK_FRAMES

    def __init__(self, decoder: CodecDecoder, form: CodecFormat) -> None:
        self.decoder = decoder
        self.form = form

    def streams(self, settings: Settings, chunk_frames: Sequence[int]) -> StatefulStreams:
        """The decoder with all its streams."""
        return load_streams(settings, self.decoder, self.form, chunk_frames)

    def known_references(self, voices: KnownVoices) -> Iterator[Reference]:
        """None: a stream is decoded without its voice's clip, as the official code does it."""
        return iter(())


def codec_format(config: VoxtralConfig) -> CodecFormat:
    """The frames of a checkpoint's codec."""
    limits, codec = config.code_limits, config.codec
    return CodecFormat(PayloadForm(len(limits), np.uint16), codec.frame_samples, codec.sampling_rate, limits)


def load_decoder(settings: Settings) -> VoxtralDecoder:
    """The decoder stage as the settings ask for it, in torch."""
    checkpoint = Checkpoint(settings.checkpoint_dir)
    with torch.device("meta"):
        decoder = CodecDecoder(checkpoint.config.codec).eval().requires_grad_(False)
    device = torch.device(compute.device(settings))
    checkpoint.load(decoder, MODEL, CODEC, compute.decoder_dtype(settings), device)
    return VoxtralDecoder(decoder.requires_grad_(False), codec_format(checkpoint.config))
