"""Frames of latents to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import CodecFormat, StreamState
from voice_clone.codec.native_decoder import NativeDecoder
from voice_clone.families.pocket_tts.checkpoint import CODEC, Checkpoint
from voice_clone.families.pocket_tts.config import MODEL, CodecConfig
from voice_clone.families.pocket_tts.family import CARD
from voice_clone.native.arrays import Array
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.stages.decoder import CardDecoder, DecoderNetwork

if TYPE_CHECKING:  # a stage that finds its weights packed does without torch
    from voice_clone.families.pocket_tts.codec_networks import Decoder


class PocketNativeDecoder(NativeDecoder):
    """As `Decoder`."""

    def __init__(self, load: Callable[[], Decoder], packed: PackedFile = NOWHERE) -> None:
        scale = packed.part("scale")(lambda: [load().emb_mean.numpy(), load().emb_std.numpy()])
        [sizes] = packed.part("sizes")(lambda: [np.array([load().stride, load().faded])])
        (self._mean, self._std), (stride, self._faded) = scale, (int(size) for size in sizes)
        self.rates = 1, stride
        super().__init__(load, packed)

    def rows(self, frames: Array) -> Array:
        return frames.transpose(0, 2, 1) * self._std + self._mean

    def bound(self, samples: Array) -> Array:
        return samples.copy()

    def decode_chunk(self, frames: Array, state: StreamState[Array]) -> Array:
        begins = state.position[:, None]
        samples = super().decode_chunk(frames, state)
        places = begins * (samples.shape[1] // frames.shape[2]) + np.arange(samples.shape[1])
        faded: Array = samples * np.minimum(places / np.float32(self._faded - 1), 1).astype(np.float32)
        return np.clip(faded, -1, 1)


def codec_format(codec: CodecConfig) -> CodecFormat:
    return CodecFormat(PayloadForm(codec.quantizer.dimension, np.float32), codec.frame_samples, codec.sample_rate)


class PocketDecoder(CardDecoder):
    card = CARD

    @staticmethod
    def network(folder: Path) -> DecoderNetwork[Decoder]:
        checkpoint = Checkpoint(folder)
        codec = checkpoint.config.mimi

        def make() -> Decoder:
            from voice_clone.families.pocket_tts.codec_networks import Decoder

            return Decoder(codec)

        return DecoderNetwork(checkpoint, MODEL, CODEC, make, codec_format(codec), codec, PocketNativeDecoder)


load_decoder, load_torch_decoder = PocketDecoder.load, PocketDecoder.load_torch
