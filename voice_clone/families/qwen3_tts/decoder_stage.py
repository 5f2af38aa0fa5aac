"""Codec frames to audio: a `voice_clone.stages.DecoderStage`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from voice_clone import compute
from voice_clone.batching.payload import PayloadForm
from voice_clone.codec.chunk import Reference
from voice_clone.codec.decoder import CodecFormat, StreamDecoder
from voice_clone.codec.decoder_streams import StatefulStreams
from voice_clone.codec.loading import load_streams
from voice_clone.families.qwen3_tts.checkpoint import CODEC, Checkpoint
from voice_clone.families.qwen3_tts.config import CHUNK_FRAMES, CodecConfig, Qwen3TTSConfig
from voice_clone.families.qwen3_tts.engines.onnx_stages import OnnxCodecDecoder
from voice_clone.families.qwen3_tts.known_voices import known_references
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.native_decoder import NativeCodecDecoder
from voice_clone.native.thread_pool import leave_threads_to_native_code
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speakers.store.protocol import KnownVoices


class Qwen3TTSDecoder:
    """The codec decoder of a checkpoint."""

    chunk_frames = CHUNK_FRAMES

    def __init__(self, decoder: StreamDecoder, codec: CodecConfig) -> None:
        self.decoder = decoder
        self.form = codec_format(codec)

    def streams(self, settings: DecoderSettings, chunk_frames: Sequence[int]) -> StatefulStreams:
        """The decoder with all its streams."""
        return load_streams(settings, self.decoder, self.form, chunk_frames)

    def known_references(self, voices: KnownVoices) -> Iterator[Reference]:
        """The codes of each voice on disk with a transcript."""
        return known_references(voices)


def codec_format(codec: CodecConfig) -> CodecFormat:
    """The frames of a checkpoint's codec."""
    return CodecFormat(
        payload=PayloadForm(codec.decoder_config.num_quantizers),
        frame_samples=codec.decode_upsample_rate,
        sample_rate=codec.output_sample_rate,
        limits=codec.decoder_config.codebook_size,
    )


def load_codec_decoder(given: Settings) -> tuple[StreamDecoder, Qwen3TTSConfig]:
    """The decoder on its engine, and the configuration. Engine torch: torch on a GPU, native code on a CPU."""
    settings = DecoderSettings.of(given)
    if settings.engine == "onnx":
        checkpoint = Checkpoint(settings.checkpoint_dir)
        codec = checkpoint.config.codec
        with torch.device("meta"):
            empty = CodecDecoder(codec.decoder_config)
        fingerprint = decoder_fingerprint(checkpoint, empty)
        return OnnxCodecDecoder(compute.runtime(settings), fingerprint, empty, codec), checkpoint.config
    if compute.device(settings) == "cpu":
        native, config = _load_native_decoder(settings)
        leave_threads_to_native_code()
        return native, config
    return load_torch_decoder(given)


def load_torch_decoder(given: Settings) -> tuple[CodecDecoder, Qwen3TTSConfig]:
    """The decoder as torch's network, and the configuration; the native decoder is made from it."""
    settings = DecoderSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    decoder = _empty_decoder(checkpoint)
    _fill(decoder, checkpoint, settings)
    return decoder, checkpoint.config


def _load_native_decoder(settings: DecoderSettings) -> tuple[NativeCodecDecoder, Qwen3TTSConfig]:
    checkpoint = Checkpoint(settings.checkpoint_dir)
    sizes, decoder = checkpoint.config.codec.decoder_config, _empty_decoder(checkpoint)
    packed = compute.packed_file(settings, "qwen3_tts decoder", checkpoint.identity(CODEC), sizes)
    if not packed.found:
        _fill(decoder, checkpoint, settings)
    return NativeCodecDecoder(decoder, packed), checkpoint.config


def _empty_decoder(checkpoint: Checkpoint) -> CodecDecoder:
    with torch.device("meta"):
        return CodecDecoder(checkpoint.config.codec.decoder_config).eval().requires_grad_(False)


def _fill(decoder: CodecDecoder, checkpoint: Checkpoint, settings: DecoderSettings) -> None:
    checkpoint.load(decoder, CODEC, "decoder.", compute.decoder_dtype(settings), torch.device(compute.device(settings)))
    decoder.requires_grad_(False)


def decoder_fingerprint(checkpoint: Checkpoint, decoder: CodecDecoder) -> str:
    """Of the codec decoder."""
    return checkpoint.stage_fingerprint(CODEC, "decoder.", list(decoder.state_dict()))


def load_decoder(settings: Settings) -> Qwen3TTSDecoder:
    """The decoder stage as the settings ask for it."""
    decoder, config = load_codec_decoder(settings)
    return Qwen3TTSDecoder(decoder, config.codec)
