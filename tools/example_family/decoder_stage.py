"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from tools.example_family.config import WEIGHTS, ChirpConfig, load_config
from tools.example_family.decoder import ChirpDecoder
from tools.example_family.family import CARD
from voice_clone import compute
from voice_clone.batching.source import PayloadForm
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.codec.chunk import Reference
from voice_clone.codec.decoder import CodecFormat
from voice_clone.codec.decoder_streams import StatefulStreams, load_streams
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speakers.store import KnownVoices


class ChirpDecoderStage:
    """The decoder of a checkpoint."""

    chunk_frames = CARD.chunk_frames

    def __init__(self, decoder: ChirpDecoder, config: ChirpConfig) -> None:
        self.decoder = decoder
        self.form = CodecFormat(
            payload=PayloadForm(len(config.codebook_sizes), np.uint16),
            frame_samples=config.frame_samples,
            sample_rate=config.sample_rate,
            limits=config.codebook_sizes,
            needs_voice=True,
        )

    def streams(self, settings: DecoderSettings, chunk_frames: Sequence[int]) -> StatefulStreams:
        """The decoder with all its streams."""
        return load_streams(settings, self.decoder, self.form, chunk_frames)

    def known_references(self, voices: KnownVoices) -> Iterator[Reference]:
        """None: a voice of chirp has no reference frames."""
        return iter(())


def load_decoder(given: Settings) -> ChirpDecoderStage:
    """The decoder stage as the settings ask for it."""
    settings = DecoderSettings.of(given)
    config = load_config(settings.checkpoint_dir)
    with torch.device("meta"):
        decoder = ChirpDecoder(config)
    files, device = CheckpointFiles(settings.checkpoint_dir), torch.device(compute.device(settings))
    files.load(decoder, WEIGHTS, "decoder.", compute.decoder_dtype(settings), device)
    return ChirpDecoderStage(decoder.eval().requires_grad_(False), config)
