"""Codec encoder and decoder against the official classes, on random weights copied between them, fp32."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.families.random_weights import fill_random
from tests.support.oracles.packages import quiet
from tests.support.oracles.qwen_tts import qwen_tts
from voice_clone.families.qwen3_tts.config import CodecDecoderConfig, CodecEncoderConfig
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.networks.codec_encoder_parts import parts_of
from voice_clone.families.qwen3_tts.networks.native_codec_encoder import NativeCodecEncoder

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

SEEDS = (0, 1, 2)
VALID_QUANTIZERS = 16
WAVEFORM_TOLERANCE = 1e-4  # peak error, of the waveform's RMS

DECODER_SHAPES: dict[str, dict[str, Any]] = {
    "multi_head": {
        "codebook_dim": 32,
        "codebook_size": 64,
        "hidden_size": 24,
        "latent_dim": 32,
        "head_dim": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "decoder_dim": 64,
    },
    "grouped_query_short_window": {
        "codebook_dim": 24,
        "codebook_size": 128,
        "hidden_size": 32,
        "latent_dim": 16,
        "head_dim": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "sliding_window": 11,
        "rope_theta": 1000.0,
        "rms_norm_eps": 1e-6,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "decoder_dim": 32,
        "upsample_rates": [5, 4, 4],
        "upsampling_ratios": [3, 2, 2],
    },
}
ENCODER_SHAPES: dict[str, dict[str, Any]] = {
    "released_rates": {
        "hidden_size": 32,
        "num_filters": 4,
        "codebook_size": 64,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "num_quantizers": 32,
    },
    "grouped_query_two_residual_layers": {
        "hidden_size": 24,
        "num_filters": 6,
        "num_residual_layers": 2,
        "kernel_size": 5,
        "residual_kernel_size": 5,
        "upsampling_ratios": [5, 4, 2],
        "codebook_size": 256,
        "codebook_dim": 12,
        "vector_quantization_hidden_dimension": 12,
        "num_semantic_quantizers": 2,
        "num_hidden_layers": 3,
        "intermediate_size": 40,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 4,
        "norm_eps": 1e-6,
        "rope_theta": 500.0,
        "num_quantizers": 18,
    },
}


def tuples(shape: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in shape.items()}


def official_codec(encoder: dict[str, Any], decoder: dict[str, Any], downsampling: int) -> Any:
    """The official tokenizer model with random initial weights."""
    with quiet():
        config = qwen_tts().core.Qwen3TTSTokenizerV2Config(
            encoder_config=encoder | {"upsample_groups": encoder["hidden_size"], "sliding_window": 9},
            decoder_config=decoder,
            encoder_valid_num_quantizers=VALID_QUANTIZERS,
            encode_downsample_rate=downsampling,
        )
        return qwen_tts().core.Qwen3TTSTokenizerV2Model(config).eval()


def speech_like(samples: int, seed: int) -> Tensor:
    """Noise under a slow envelope over a few partials, RMS about 0.1, so that frames differ."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(samples) / 24000
    envelope = 0.2 + torch.sin(2 * math.pi * 3 * time).abs()
    tone = sum(torch.sin(2 * math.pi * (110 + 40 * torch.sin(2 * math.pi * time)) * k * time) / k for k in (1, 2, 3))
    return 0.1 * envelope * (tone + 0.5 * torch.randn(samples, generator=generator))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", DECODER_SHAPES)
def test_decoder_waveform_equals_official(shape: str, seed: int) -> None:
    ours = CodecDecoder(CodecDecoderConfig(**tuples(DECODER_SHAPES[shape])))
    fill_random(ours, seed)
    official = official_codec(ENCODER_SHAPES["released_rates"], DECODER_SHAPES[shape], 1920).decoder
    missing, unexpected = official.load_state_dict(ours.state_dict(), strict=False)
    assert not unexpected
    assert all("input_proj" in name and "quantizer" in name for name in missing), "decoding needs every other tensor"

    frames = 150  # more than two windows of 72
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(DECODER_SHAPES[shape]["codebook_size"], (2, 16, frames), generator=generator)
    with torch.inference_mode():
        expected = official(codes)[:, 0]
    actual = ours(codes)
    assert actual.shape == expected.shape
    rms = expected.square().mean().sqrt().item()
    assert rms > 0.01
    assert (expected.abs() < 1).float().mean() > 0.99
    assert (actual - expected).abs().max().item() <= WAVEFORM_TOLERANCE * rms

    state, streamed = ours.new_state(2), []
    for chunk in torch.split(codes, [1, 2, 4, 8, 12, 23, 100], dim=-1):
        streamed.append(ours.decode_chunk(chunk, state))
    assert (torch.cat(streamed, dim=-1) - expected).abs().max().item() <= WAVEFORM_TOLERANCE * rms


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", ENCODER_SHAPES)
def test_encoder_codes_equal_official(shape: str, seed: int) -> None:
    known = {entry.name for entry in fields(CodecEncoderConfig)}
    config = CodecEncoderConfig(**{name: x for name, x in tuples(ENCODER_SHAPES[shape]).items() if name in known})
    frame = 2 * math.prod(config.upsampling_ratios)
    model = official_codec(ENCODER_SHAPES[shape], DECODER_SHAPES["multi_head"], frame)
    fill_random(model.encoder, seed)
    ours = CodecEncoder(config, VALID_QUANTIZERS)
    weights = model.encoder.state_dict()
    ours.load_state_dict({name: weights[name] for name in ours.state_dict()})

    makers = parts_of(config, VALID_QUANTIZERS, lambda name, shape: weights[name].reshape(shape).numpy())
    native = NativeCodecEncoder(config, lambda name: [*makers[name]()])
    everything = []
    for samples in (1, frame - 1, frame, frame + 1, 20 * frame + 7, 61 * frame):
        waveform = speech_like(samples, seed)
        with torch.inference_mode():
            expected = model.encode(waveform[None], torch.ones(1, samples, dtype=torch.long)).audio_codes[0]
        actual = ours.encode(waveform)
        assert actual.shape == (-(-samples // frame), VALID_QUANTIZERS)
        assert actual.dtype == torch.int64
        assert torch.equal(actual, expected)
        np.testing.assert_array_equal(native.encode(waveform), expected)
        everything.append(actual)
    codes = torch.cat(everything)
    distinct = sum(len(set(codes[:, k].tolist())) for k in range(VALID_QUANTIZERS))
    assert distinct > 200, "codes that never change prove nothing"


def test_released_shapes_have_the_official_tensors() -> None:
    """Names and shapes at the released sizes, without memory for them."""
    decoder: dict[str, Any] = {"codebook_dim": 512, "hidden_size": 512, "intermediate_size": 1024, "head_dim": 64}
    with torch.device("meta"):
        official = official_codec({"hidden_size": 512}, decoder, 1920)
        networks = {
            "encoder": CodecEncoder(CodecEncoderConfig(), VALID_QUANTIZERS),
            "decoder": CodecDecoder(CodecDecoderConfig(**decoder)),
        }
    theirs = {name: tensor.shape for name, tensor in official.state_dict().items()}
    for part, network in networks.items():
        for name, tensor in network.state_dict().items():
            assert theirs.get(f"{part}.{name}") == tensor.shape, name
