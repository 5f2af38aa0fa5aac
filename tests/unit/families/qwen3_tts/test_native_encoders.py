"""The native encoders: torch's codes and embeddings, with any number of threads, under one fingerprint."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.families.factories import CheckpointFactory
from tests.support.families.qwen3_encoders import only_ties
from tests.support.families.random_weights import fill_random
from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts import encoder as encoder_stage
from voice_clone.families.qwen3_tts.config import CodecEncoderConfig, SpeakerEncoderConfig
from voice_clone.families.qwen3_tts.networks import native_codec_encoder
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.networks.codec_encoder_parts import parts_of
from voice_clone.families.qwen3_tts.networks.native_codec_encoder import NativeCodecEncoder
from voice_clone.families.qwen3_tts.networks.native_speaker_encoder import NativeSpeakerEncoder
from voice_clone.families.qwen3_tts.networks.speaker_clip import min_samples
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.native.arrays import Array
from voice_clone.native.thread_pool import ThreadPool
from voice_clone.settings import Settings

TOLERANCE = 1e-4  # of an embedding, relative to its root mean square
BOOKS = 5
CODECS = {
    "small": CodecEncoderConfig(
        hidden_size=64, num_filters=4, codebook_size=64, codebook_dim=32, num_hidden_layers=2, intermediate_size=96
    ),
    "odd": CodecEncoderConfig(  # channels that fill neither vectors nor panels; fewer keys than queries
        hidden_size=60,
        num_filters=6,
        num_residual_layers=2,
        upsampling_ratios=(5, 1, 3),
        kernel_size=5,
        last_kernel_size=5,
        codebook_size=50,
        codebook_dim=60,  # that of the latent: there is no projection
        num_semantic_quantizers=2,
        num_hidden_layers=3,
        intermediate_size=70,
        num_attention_heads=6,
        num_key_value_heads=3,
    ),
}
SPEAKERS = {
    "small": SpeakerEncoderConfig(
        mel_dim=20, enc_dim=24, enc_channels=(32, 32, 32, 64), enc_kernel_sizes=(5, 3, 3, 1), enc_dilations=(1, 2, 3, 1)
    ),
    "odd": SpeakerEncoderConfig(
        mel_dim=13,
        enc_dim=7,
        enc_channels=(15, 15, 15, 30),
        enc_kernel_sizes=(3, 5, 3, 3),
        enc_dilations=(2, 1, 4, 2),
        enc_attention_channels=9,
        enc_res2net_scale=3,
        enc_se_channels=5,
        sample_rate=16000,
    ),
}


@cache
def codec(shape: str) -> tuple[CodecEncoder, NativeCodecEncoder]:
    network = CodecEncoder(CODECS[shape], BOOKS).eval().requires_grad_(False)
    fill_random(network, seed=1)
    return network, native_codec(shape, network)


def native_codec(shape: str, network: CodecEncoder) -> NativeCodecEncoder:
    makers = parts_of(CODECS[shape], BOOKS, lambda name, shape: network.state_dict()[name])
    return NativeCodecEncoder(CODECS[shape], lambda name: [*makers[name]()])


@cache
def speaker(shape: str) -> tuple[SpeakerEncoder, NativeSpeakerEncoder]:
    network = SpeakerEncoder(SPEAKERS[shape]).eval().requires_grad_(False)
    fill_random(network, seed=1)
    return network, NativeSpeakerEncoder(SPEAKERS[shape], lambda name, shape: network.state_dict()[name])


def clip(samples: int) -> Array:
    """Noise that grows louder, around 0.1."""
    noise = np.random.default_rng(samples).standard_normal(samples, np.float32)
    return np.float32(0.1) * noise * np.linspace(0.2, 2, samples, dtype=np.float32)


@pytest.mark.parametrize("shape", CODECS)
def test_codes_are_those_of_torch(shape: str) -> None:
    """Of a sample, at the edges of a frame and of a piece, and of several pieces."""
    network, native = codec(shape)
    hop = int(np.prod(CODECS[shape].upsampling_ratios))
    piece = native_codec_encoder.PIECE_ROWS * hop
    found = []
    for samples in (1, hop - 1, hop, hop + 1, 2 * hop + 1, piece, piece + 1, 3 * piece - 1, 4 * piece + hop + 7):
        expected, codes = network.encode(clip(samples)), native.encode(clip(samples))
        assert codes.shape == (-(-samples // (2 * hop)), BOOKS) and codes.dtype == np.int64
        waveform = torch.from_numpy(clip(samples))
        assert only_ties(network, waveform, torch.from_numpy(codes), expected)
        assert (codes == expected.numpy()).mean() > 0.95, samples
        found.append(codes)
    everything = np.concatenate(found)
    assert all(len(set(everything[:, book].tolist())) > 15 for book in range(BOOKS)), "codes that never change"


@pytest.mark.parametrize("shape", CODECS)
def test_a_frame_depends_on_nothing_behind_it(shape: str) -> None:
    """But the last one of a cut clip, which hears silence there."""
    _, native = codec(shape)
    frame = 2 * int(np.prod(CODECS[shape].upsampling_ratios))
    waveform = clip(40 * frame)
    np.testing.assert_array_equal(native.encode(waveform[: 31 * frame]), native.encode(waveform)[:31])


@pytest.mark.parametrize("shape", SPEAKERS)
def test_embeddings_are_those_of_torch(shape: str) -> None:
    network, native = speaker(shape)
    for samples in (min_samples(SPEAKERS[shape]), 7000, 24001, 150_000):
        expected, embedding = network.embed(clip(samples)).numpy(), native.embed(clip(samples))
        assert embedding.shape == expected.shape and embedding.dtype == np.float32
        assert np.abs(embedding - expected).max() <= TOLERANCE * np.sqrt(np.square(expected).mean())


@pytest.mark.parametrize("shape", SPEAKERS)
def test_both_refuse_the_same_clips(shape: str) -> None:
    short, spoilt = clip(min_samples(SPEAKERS[shape]) - 1), clip(24000)
    spoilt[777] = np.nan
    for encoder in speaker(shape):
        for wrong in (short, spoilt, clip(48000).reshape(2, -1)):
            with pytest.raises(InvalidArgument, match="reference audio"):
                encoder.embed(wrong)


def test_threads_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voice_clone.native.thread_pool.MIN_PARALLEL_MULTIPLICATIONS", 0)
    found: list[list[Any]] = []
    for threads in (1, 2, 5):
        monkeypatch.setattr("voice_clone.native.thread_pool._pool", ThreadPool(threads))
        encoder = native_codec("odd", codec("odd")[0])
        network, _ = speaker("odd")
        embedder = NativeSpeakerEncoder(SPEAKERS["odd"], lambda name, shape, of=network: of.state_dict()[name])
        found.append([encoder.encode(clip(9000)), embedder.embed(clip(9000))])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_voice_of_torch_is_one_of_native_code(checkpoint_folder: CheckpointFactory) -> None:
    """Fingerprints decide whether a stored voice is extracted again; torch computes on a GPU."""
    folder: Path = checkpoint_folder("tiny", 0)
    given = Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(folder), "VOICE_CLONE_DEVICE": "cpu"})
    embedder, _, of_speaker = encoder_stage.load_speaker_encoder(given)
    encoder, _, of_codec = encoder_stage.load_codec_encoder(given)
    assert isinstance(embedder, NativeSpeakerEncoder) and isinstance(encoder, NativeCodecEncoder)
    assert of_speaker == encoder_stage.load_torch_speaker_encoder(given)[2]
    assert of_codec == encoder_stage.load_torch_codec_encoder(given)[2] != of_speaker


def test_settings_that_are_gone_are_named(
    checkpoint_folder: CheckpointFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """And do no harm: the same voice is made."""
    given = {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint_folder("tiny", 0)), "VOICE_CLONE_DEVICE": "cpu"}
    old = {"VOICE_CLONE_ENGINE": "onnx", "VOICE_CLONE_ONNX_DIR": "graphs"}
    found = [encoder_stage.load_encoder(Settings({}, each)) for each in (given, {**given, **old})]
    assert [record.args for record in caplog.records] == [("engine",), ("onnx_dir",)]
    now, then = (each.encode(clip(24000), None) for each in found)
    assert all(np.array_equal(now[name], then[name]) for name in now)
