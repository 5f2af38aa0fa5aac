"""Voxtral's native decoder: torch's samples, and a stream's own bits, however it is cut and beside whatever."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from tests.support.families.in_torch import InTorch
from tests.support.families.random_weights import fill_random, reader
from tests.support.families.speech_like import rms
from tests.support.families.voxtral import ODD, TINY
from voice_clone.codec.decoder import StreamState
from voice_clone.families.voxtral.codec import MOST_FRAMES, NativeCodecDecoder
from voice_clone.families.voxtral.codec_networks import CodecDecoder
from voice_clone.families.voxtral.codec_weights import CodecDecoderWeights
from voice_clone.families.voxtral.config import CodecConfig
from voice_clone.native.thread_pool import ThreadPool

pytestmark = pytest.mark.thorough

TOLERANCE = 1e-5  # of the RMS
RATES = replace(  # a transformer behind another one, an uneven kernel, keys for several heads
    ODD.codec,
    decoder_convs_kernels_str="1,1,5,4",
    decoder_convs_strides_str="1,1,2,2",
    n_kv_heads=2,
    patch_proj_kernel_size=3,
)
SHAPES = pytest.mark.parametrize("config", [TINY.codec, ODD.codec, RATES], ids=["tiny", "odd", "rates"])


@cache
def _both(number: int) -> tuple[CodecDecoder, InTorch]:
    config = (TINY.codec, ODD.codec, RATES)[number]
    decoder = CodecDecoder(config)
    fill_random(decoder, seed=0)
    with torch.no_grad():
        decoder.output_proj.conv.weight.mul_(0.1)  # far from the clamp
    weights = CodecDecoderWeights(config, reader(decoder))
    return decoder.eval(), InTorch(NativeCodecDecoder(config, lambda: weights))


def both(config: CodecConfig) -> tuple[CodecDecoder, InTorch]:
    return _both((TINY.codec, ODD.codec, RATES).index(config))


def some_codes(config: CodecConfig, batch: int, frames: int, seed: int = 0) -> Tensor:
    limits = torch.tensor([config.semantic_codebook_size, *[config.acoustic_codebook_size] * config.acoustic_dim])
    random = torch.rand(batch, frames, len(limits), generator=torch.Generator().manual_seed(seed))
    return (random * limits).long().transpose(1, 2)


@pytest.mark.parametrize("threads", [1, 3])
@SHAPES
def test_samples_are_those_of_torch(config: CodecConfig, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voice_clone.native.thread_pool._pool", ThreadPool(threads))
    monkeypatch.setattr("voice_clone.native.thread_pool.MIN_PARALLEL_MULTIPLICATIONS", 0)
    decoder, native = both(config)
    codes, state = some_codes(config, 2, 40), native.new_state(2)
    expected, got = decoder(codes), native.decode_chunk(codes, state)
    assert got.shape == expected.shape and 0.01 < rms(expected) < 0.95
    assert rms(got - expected) < TOLERANCE * rms(expected)
    assert state.position.tolist() == [40, 40]


@SHAPES
def test_a_stream_is_the_same_bit_for_bit_in_any_chunks_and_beside_any_others(config: CodecConfig) -> None:
    native, count = both(config)[1], 2 * MOST_FRAMES + 3
    streams = [some_codes(config, 1, count, seed) for seed in range(4)]
    whole = [native.decode_chunk(each, native.new_state(1)) for each in streams]
    for sizes in ([1] * count, [1, 2, 4, 8, count - 15], [MOST_FRAMES + 1, count - MOST_FRAMES - 1]):
        state = native.new_state(1)
        parts = [native.decode_chunk(part, state) for part in torch.split(streams[0], sizes, dim=2)]
        assert torch.equal(torch.cat(parts, dim=1), whole[0])
    states, frame = [native.new_state(1) for _ in streams], whole[0].shape[1] // count
    for past, (codes, state) in enumerate(zip(streams, states, strict=True)):
        if past:  # the first one begins beside others that do not
            native.decode_chunk(codes[..., :past], state)
    together = StreamState.stack(states)
    got = native.decode_chunk(torch.cat([each[..., past : past + 9] for past, each in enumerate(streams)]), together)
    for past, (samples, expected) in enumerate(zip(got, whole, strict=True)):
        assert torch.equal(samples, expected[0, past * frame : (past + 9) * frame])
