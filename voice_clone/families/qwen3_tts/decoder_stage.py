"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from voice_clone import compute
from voice_clone.batching.source import PayloadForm
from voice_clone.codec.chunk import Reference
from voice_clone.codec.decoder import CodecFormat, StreamDecoder
from voice_clone.families.qwen3_tts.checkpoint import CODEC, Checkpoint
from voice_clone.families.qwen3_tts.config import CodecConfig, Qwen3TTSConfig
from voice_clone.families.qwen3_tts.family import BASE
from voice_clone.families.qwen3_tts.networks.native_codec_decoder import NativeCodecDecoder
from voice_clone.families.qwen3_tts.prompt import ARTIFACT, CODES
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speakers.store import KnownVoices
from voice_clone.stages import known_voices
from voice_clone.stages.decoder import DecoderNetwork, StreamDecoderStage

if TYPE_CHECKING:  # a stage that finds its weights packed does without torch
    from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder


def codec_format(codec: CodecConfig) -> CodecFormat:
    """The frames of a checkpoint's codec."""
    return CodecFormat(
        payload=PayloadForm(codec.decoder_config.num_quantizers),
        frame_samples=codec.decode_upsample_rate,
        sample_rate=codec.output_sample_rate,
        limits=codec.decoder_config.codebook_size,
    )


def known_references(voices: KnownVoices) -> Iterator[Reference]:
    """The codes of each stored voice with a transcript, the latest first."""
    return known_voices.known_references(voices, ARTIFACT, CODES)


def load_codec_decoder(given: Settings) -> tuple[StreamDecoder[Any], Qwen3TTSConfig]:
    """The decoder on its engine, and the configuration. Engine torch: torch on a GPU, native code on a CPU."""
    settings = DecoderSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    network = _network(checkpoint)
    if settings.engine == "onnx":
        from voice_clone.families.qwen3_tts.networks.onnx_engines import OnnxCodecDecoder

        empty = network.empty()
        fingerprint = decoder_fingerprint(checkpoint, empty)
        engine = OnnxCodecDecoder(compute.runtime(settings), fingerprint, empty, checkpoint.config.codec)
        return engine, checkpoint.config
    if compute.device(settings) == "cpu":
        sizes = checkpoint.config.codec.decoder_config
        return network.load_native(settings, "qwen3_tts", sizes, NativeCodecDecoder), checkpoint.config
    return network.load(settings), checkpoint.config


def load_torch_decoder(given: Settings) -> tuple[CodecDecoder, Qwen3TTSConfig]:
    """The decoder as torch's network, and the configuration; the native decoder is made from it."""
    settings = DecoderSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    return _network(checkpoint).load(settings), checkpoint.config


def _network(checkpoint: Checkpoint) -> DecoderNetwork[CodecDecoder]:
    def make() -> CodecDecoder:
        from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder

        return CodecDecoder(checkpoint.config.codec.decoder_config)

    return DecoderNetwork(checkpoint, CODEC, "decoder.", make)


def decoder_fingerprint(checkpoint: Checkpoint, decoder: CodecDecoder) -> str:
    """Of the codec decoder."""
    return checkpoint.stage_fingerprint(CODEC, "decoder.", list(decoder.state_dict()))


def load_decoder(settings: Settings) -> StreamDecoderStage:
    """The decoder stage as the settings ask for it."""
    decoder, config = load_codec_decoder(settings)
    return StreamDecoderStage(decoder, codec_format(config.codec), BASE.chunk_frames, known_references)
