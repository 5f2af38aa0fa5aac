"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import CodecFormat, StreamState
from voice_clone.codec.native_decoder import NativeDecoder
from voice_clone.families.voxtral.checkpoint import CODEC, Checkpoint
from voice_clone.families.voxtral.codec_weights import CodecDecoderWeights
from voice_clone.families.voxtral.config import MODEL, CodecConfig, VoxtralConfig
from voice_clone.families.voxtral.family import CARD
from voice_clone.native.arrays import Array
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.stages.decoder import CardDecoder, DecoderNetwork

if TYPE_CHECKING:  # native code does without torch
    from voice_clone.families.voxtral.codec_networks import CodecDecoder

MOST_FRAMES = 32  # of all streams together at once: a frame takes 0.7 MB at the released shape while it is decoded


class NativeCodecDecoder(NativeDecoder):
    """As `CodecDecoder`."""

    def __init__(
        self, config: CodecConfig, load: Callable[[], CodecDecoderWeights], packed: PackedFile = NOWHERE
    ) -> None:
        [self._codebook] = packed.part("codebook", sparse=True)(lambda: [load().codebook()])
        self._step = 2 / (config.acoustic_codebook_size - 1)  # between two levels
        self.rates = 1, config.rate
        super().__init__(load, packed)

    def rows(self, frames: Array) -> Array:
        acoustic = frames[:, 1:].astype(np.float32) * self._step - 1
        return np.concatenate([self._codebook[frames[:, 0]], acoustic.swapaxes(1, 2)], axis=-1)

    def bound(self, samples: Array) -> Array:
        return samples.clip(-1, 1)

    def decode_chunk(self, frames: Array, state: StreamState[Array]) -> Array:
        size = max(1, MOST_FRAMES // len(frames))
        pieces = (frames[..., begin : begin + size] for begin in range(0, frames.shape[-1], size))
        return np.concatenate([self._decode(each, state, each.shape[-1]) for each in pieces], axis=-1)


def codec_format(config: VoxtralConfig) -> CodecFormat:
    """The frames of a checkpoint's codec."""
    limits, codec = config.code_limits, config.codec
    return CodecFormat(PayloadForm(len(limits), np.uint16), codec.frame_samples, codec.sampling_rate, limits)


class VoxtralDecoder(CardDecoder):
    """A stream is decoded without its voice's clip, as the official code does it."""

    card = CARD

    @staticmethod
    def network(folder: Path) -> DecoderNetwork[CodecDecoder]:
        checkpoint = Checkpoint(folder)
        config, codec = checkpoint.config, checkpoint.config.codec

        def make() -> CodecDecoder:
            from voice_clone.families.voxtral.codec_networks import CodecDecoder

            return CodecDecoder(codec)

        def native(load: Any, packed: PackedFile) -> NativeCodecDecoder:
            read = checkpoint.reader(MODEL)

            def weights() -> CodecDecoderWeights:
                return CodecDecoderWeights(codec, lambda name, shape: read(CODEC + name, shape))

            return NativeCodecDecoder(codec, weights, packed)

        return DecoderNetwork(checkpoint, MODEL, CODEC, make, codec_format(config), codec, native)


load_decoder, load_torch_decoder = VoxtralDecoder.load, VoxtralDecoder.load_torch
