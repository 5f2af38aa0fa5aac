"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import CodecFormat
from voice_clone.families.omnivoice.codec_checkpoint import CodecCheckpoint
from voice_clone.families.omnivoice.codec_config import FRAME_SAMPLES, SAMPLE_RATE
from voice_clone.families.omnivoice.codec_streams import CodecStreams
from voice_clone.families.omnivoice.config import CODEBOOKS, CODEC, CODES
from voice_clone.families.omnivoice.family import CARD
from voice_clone.families.omnivoice.networks.codec_decoder import REACH, CodecDecoder
from voice_clone.settings import DecoderSettings
from voice_clone.stages.decoder import CardDecoder, DecoderNetwork

FORM = CodecFormat(
    PayloadForm(CODEBOOKS, np.uint16), FRAME_SAMPLES, SAMPLE_RATE, CODES, look_ahead=REACH, needs_voice=True
)


class OmniVoiceDecoder(CardDecoder):
    """In torch."""

    card = CARD

    @staticmethod
    def network(folder: Path) -> DecoderNetwork[CodecDecoder]:
        checkpoint = CodecCheckpoint(folder)
        return DecoderNetwork(checkpoint, CODEC, "", lambda: CodecDecoder(checkpoint.config), FORM)

    def streams(self, settings: DecoderSettings, chunk_frames: Sequence[int]) -> CodecStreams:
        """The decoder with all its streams. On a CPU each is decoded by itself: sharing gains nothing."""
        return CodecStreams(self.decoder, self.form, together=self.decoder.device.type == "cuda")


load_decoder = OmniVoiceDecoder.load
