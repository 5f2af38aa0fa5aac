"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from voice_clone.batching.source import PayloadForm
from voice_clone.codec.chunk import Reference
from voice_clone.codec.decoder import CodecFormat
from voice_clone.families.omnivoice.codec_checkpoint import CodecCheckpoint
from voice_clone.families.omnivoice.codec_config import FRAME_SAMPLES, MODEL, SAMPLE_RATE
from voice_clone.families.omnivoice.codec_streams import CodecStreams
from voice_clone.families.omnivoice.config import CODEBOOKS, CODES
from voice_clone.families.omnivoice.family import CARD
from voice_clone.families.omnivoice.networks.codec_decoder import REACH, CodecDecoder
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speakers.store import KnownVoices
from voice_clone.stages.decoder import DecoderNetwork, no_references

FORM = CodecFormat(
    PayloadForm(CODEBOOKS, np.uint16), FRAME_SAMPLES, SAMPLE_RATE, CODES, look_ahead=REACH, needs_voice=True
)


class OmniVoiceDecoderStage:
    """The codec's decoder of a checkpoint."""

    form = FORM
    chunk_frames = CARD.chunk_frames

    def __init__(self, decoder: CodecDecoder) -> None:
        self.decoder = decoder

    def streams(self, settings: DecoderSettings, chunk_frames: Sequence[int]) -> CodecStreams:
        """The decoder with all its streams. On a CPU each is decoded by itself: sharing gains nothing."""
        return CodecStreams(self.decoder, self.form, together=self.decoder.device.type == "cuda")

    def known_references(self, voices: KnownVoices) -> Iterator[Reference]:
        """As of `DecoderStage`: a stream does not begin behind its reference."""
        return no_references(voices)


def load_decoder(given: Settings) -> OmniVoiceDecoderStage:
    """The decoder stage as the settings ask for it, in torch."""
    settings = DecoderSettings.of(given)
    checkpoint = CodecCheckpoint(settings.checkpoint_dir)
    network = DecoderNetwork(checkpoint, MODEL, "", lambda: CodecDecoder(checkpoint.config))
    return OmniVoiceDecoderStage(network.load(settings))
