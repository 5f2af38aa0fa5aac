"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tools.example_family.config import WEIGHTS, load_config
from tools.example_family.decoder import ChirpDecoder
from tools.example_family.family import CARD
from voice_clone.batching.source import PayloadForm
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.codec.decoder import CodecFormat
from voice_clone.stages.decoder import CardDecoder, DecoderNetwork


class ChirpDecoderStage(CardDecoder):
    """The decoder of a checkpoint."""

    card = CARD

    @staticmethod
    def network(folder: Path) -> DecoderNetwork[ChirpDecoder]:
        config = load_config(folder)
        form = CodecFormat(
            payload=PayloadForm(len(config.codebook_sizes), np.uint16),
            frame_samples=config.frame_samples,
            sample_rate=config.sample_rate,
            limits=config.codebook_sizes,
            needs_voice=True,
        )
        return DecoderNetwork(CheckpointFiles(folder), WEIGHTS, "decoder.", lambda: ChirpDecoder(config), form)


load_decoder = ChirpDecoderStage.load
