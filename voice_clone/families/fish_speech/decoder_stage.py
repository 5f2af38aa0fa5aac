"""Codec frames to audio: a `voice_clone.stages.DecoderStage`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from voice_clone import compute
from voice_clone.batching.payload import PayloadForm
from voice_clone.codec.chunk import Reference
from voice_clone.codec.decoder import CodecFormat, StreamDecoder
from voice_clone.codec.decoder_streams import StatefulStreams
from voice_clone.codec.loading import load_streams
from voice_clone.families.fish_speech.checkpoint import CODEC, Checkpoint
from voice_clone.families.fish_speech.config import CHUNK_FRAMES, FRAME_SAMPLES, SAMPLE_RATE, CodecConfig
from voice_clone.families.fish_speech.networks.codec_decoder import CodecDecoder
from voice_clone.families.fish_speech.networks.native_decoder import NativeCodecDecoder
from voice_clone.native.thread_pool import leave_threads_to_native_code
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speakers.store.protocol import KnownVoices


class FishSpeechDecoder:
    """The codec decoder of a checkpoint."""

    chunk_frames = CHUNK_FRAMES

    def __init__(self, decoder: StreamDecoder, form: CodecFormat) -> None:
        self.decoder = decoder
        self.form = form

    def streams(self, settings: DecoderSettings, chunk_frames: Sequence[int]) -> StatefulStreams:
        """The decoder with all its streams."""
        return load_streams(settings, self.decoder, self.form, chunk_frames)

    def known_references(self, voices: KnownVoices) -> Iterator[Reference]:
        """None: a stream is decoded without its reference, as the official code does it."""
        return iter(())


def codec_format(codec: CodecConfig) -> CodecFormat:
    """The frames of a checkpoint's codec."""
    limits = codec.code_limits
    return CodecFormat(PayloadForm(len(limits), np.uint16), FRAME_SAMPLES, SAMPLE_RATE, limits)


def load_torch_decoder(given: Settings) -> tuple[CodecDecoder, CodecConfig]:
    """The decoder as torch's network, and its sizes; the native decoder is made from it."""
    settings = DecoderSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    decoder = _empty_decoder(checkpoint)
    _fill(decoder, checkpoint, settings)
    return decoder, checkpoint.codec


def _load_native_decoder(settings: DecoderSettings) -> tuple[NativeCodecDecoder, CodecConfig]:
    checkpoint = Checkpoint(settings.checkpoint_dir)
    packed = compute.packed_file(settings, "fish_speech decoder", checkpoint.identity(CODEC), checkpoint.codec)
    decoder = _empty_decoder(checkpoint)
    if not packed.found:
        _fill(decoder, checkpoint, settings)
    return NativeCodecDecoder(decoder, packed), checkpoint.codec


def _empty_decoder(checkpoint: Checkpoint) -> CodecDecoder:
    with torch.device("meta"):
        return CodecDecoder(checkpoint.codec).eval().requires_grad_(False)


def _fill(decoder: CodecDecoder, checkpoint: Checkpoint, settings: DecoderSettings) -> None:
    checkpoint.load(decoder, CODEC, "", compute.decoder_dtype(settings), torch.device(compute.device(settings)))
    decoder.requires_grad_(False)


def load_decoder(given: Settings) -> FishSpeechDecoder:
    """The decoder stage as the settings ask for it: native code on a CPU, torch on a GPU."""
    settings = DecoderSettings.of(given)
    if compute.device(settings) == "cpu":
        native, codec = _load_native_decoder(settings)
        leave_threads_to_native_code()
        return FishSpeechDecoder(native, codec_format(codec))
    decoder, codec = load_torch_decoder(given)
    return FishSpeechDecoder(decoder, codec_format(codec))
