"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import CodecFormat
from voice_clone.codec.native_decoder import NativeWindowedDecoder, tanh
from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone.families.fish_speech.config import CODEC, FRAME_SAMPLES, SAMPLE_RATE, CodecConfig
from voice_clone.families.fish_speech.family import CARD
from voice_clone.native.arrays import Array
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.stages.decoder import CardDecoder, DecoderNetwork

if TYPE_CHECKING:  # a stage that finds its weights packed does without torch
    from voice_clone.families.fish_speech.codec_decoder import CodecDecoder


class NativeCodecDecoder(NativeWindowedDecoder):
    """As `CodecDecoder`."""

    def __init__(self, load: Callable[[], CodecDecoder], packed: PackedFile = NOWHERE) -> None:
        self._books = packed.part("codebooks")(
            lambda: [book.codebook.weight.detach().numpy() for book in load().quantizer.books]
        )
        super().__init__(load, packed)

    def rows(self, codes: Array) -> Array:
        return np.concatenate([book[codes[:, place]] for place, book in enumerate(self._books)], axis=-1)

    def bound(self, samples: Array) -> Array:
        return tanh(samples)


def codec_format(codec: CodecConfig) -> CodecFormat:
    limits = codec.code_limits
    return CodecFormat(PayloadForm(len(limits), np.uint16), FRAME_SAMPLES, SAMPLE_RATE, limits)


class FishSpeechDecoder(CardDecoder):
    """A stream is decoded without its reference, as the official code does it."""

    card = CARD

    @staticmethod
    def network(folder: Path) -> DecoderNetwork[CodecDecoder]:
        checkpoint = Checkpoint(folder)
        codec = checkpoint.codec

        def make() -> CodecDecoder:
            from voice_clone.families.fish_speech.codec_decoder import CodecDecoder

            return CodecDecoder(codec)

        return DecoderNetwork(checkpoint, CODEC, "", make, codec_format(codec), codec, NativeCodecDecoder)


load_decoder, load_torch_decoder = FishSpeechDecoder.load, FishSpeechDecoder.load_torch
