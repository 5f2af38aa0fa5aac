"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import CodecFormat
from voice_clone.families.qwen3_tts.checkpoint import CODEC, Checkpoint
from voice_clone.families.qwen3_tts.config import CodecConfig
from voice_clone.families.qwen3_tts.family import BASE
from voice_clone.families.qwen3_tts.networks.codec_decoder_parts import CodecDecoderWeights
from voice_clone.families.qwen3_tts.networks.native_codec_decoder import NativeCodecDecoder
from voice_clone.native.packed_file import PackedFile
from voice_clone.stages.decoder import CardDecoder, DecoderNetwork

if TYPE_CHECKING:  # native code does without torch
    from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder


def codec_format(codec: CodecConfig) -> CodecFormat:
    return CodecFormat(
        payload=PayloadForm(codec.decoder_config.num_quantizers),
        frame_samples=codec.decode_upsample_rate,
        sample_rate=codec.output_sample_rate,
        limits=codec.decoder_config.codebook_size,
    )


class Qwen3TTSDecoder(CardDecoder):
    """Native code on a CPU, torch on a GPU."""

    card = BASE

    @staticmethod
    def network(folder: Path) -> DecoderNetwork[CodecDecoder]:
        checkpoint = Checkpoint(folder)
        codec = checkpoint.config.codec

        def make() -> CodecDecoder:
            from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder

            return CodecDecoder(codec.decoder_config)

        def native(load: Any, packed: PackedFile) -> NativeCodecDecoder:
            read = checkpoint.reader(CODEC)

            def weights() -> CodecDecoderWeights:
                return CodecDecoderWeights(sizes, lambda name, shape: read(f"decoder.{name}", shape))

            return NativeCodecDecoder(weights, packed)

        form, sizes = codec_format(codec), codec.decoder_config
        return DecoderNetwork(checkpoint, CODEC, "decoder.", make, form, sizes, native)


load_decoder, load_torch_decoder = Qwen3TTSDecoder.load, Qwen3TTSDecoder.load_torch
