"""What the released models cost: sizes of their networks, from the configuration alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from tools.diagnosis.speed import arbitrary, weights
from tools.diagnosis.workload import Pace, Workload
from tools.families.qwen3_tts.checkpoint_config import SHAPES
from tools.families.qwen3_tts.checkpoint_maker import write_configuration
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.networks.native_codec_decoder import NativeCodecDecoder
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.families.qwen3_tts.networks.talker import Talker

RELEASED = ("0.6b", "1.7b")
NATIVE_PROCESSES = 3  # talker, code2wav and voice encoder


def workloads() -> dict[str, Workload]:
    """The released shapes."""
    return {shape: _workload(shape) for shape in RELEASED}


def _workload(shape: str) -> Workload:
    with tempfile.TemporaryDirectory() as folder:
        config = write_configuration(SHAPES[shape], Path(folder))
    talker, codec = config.talker, config.codec
    with torch.device("meta"):
        network = Talker(config)
        decoder = CodecDecoder(codec.decoder_config)
        encoders = [
            SpeakerEncoder(config.speaker_encoder),
            CodecEncoder(codec.encoder_config, codec.encoder_valid_num_quantizers),
        ]
    heads = weights(network.codec_head) + weights(network.code_predictor.lm_head)
    layers = weights(network.model.layers) + weights(network.code_predictor.model.layers)
    in_file = network.model.text_embedding.weight.numel()  # a prompt reads a few of its rows
    return Workload(
        name=f"Qwen3-TTS {shape.upper()}",
        talker=StackConfig.of(talker),
        predictor=StackConfig.of(talker.code_predictor_config),
        head_weights=heads,
        table_weights=weights(network) - layers - heads - in_file,
        encoder_weights=sum(map(weights, encoders)),
        decoder_weights=weights(decoder),
        processes=0,
        native_processes=NATIVE_PROCESSES,
        pace=Pace(
            passes=talker.num_code_groups - 1,
            codebooks=codec.decoder_config.num_quantizers,
            decoder_name="qwen3_tts",
            decoder=lambda: _decoder(config),
            frame_seconds=codec.decode_upsample_rate / codec.output_sample_rate,
        ),
    )


def _decoder(config: Qwen3TTSConfig) -> NativeCodecDecoder:
    with torch.device("meta"):
        decoder = CodecDecoder(config.codec.decoder_config)
    loaded = arbitrary(decoder)
    return NativeCodecDecoder(lambda: loaded)
