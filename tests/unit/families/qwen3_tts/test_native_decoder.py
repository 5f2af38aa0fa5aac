"""The native codec decoder: torch's samples, and a stream's own bits, however it is cut and whatever is beside it."""

from __future__ import annotations

import copy
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor

from tests.support.families.factories import CheckpointFactory
from tests.support.families.in_torch import InTorch
from tests.support.families.random_weights import fill_random, reader
from tests.support.families.small_codec import SMALL as TINY
from voice_clone.codec.decoder import StreamState
from voice_clone.codec.native_decoder import NativeDecoder
from voice_clone.families.qwen3_tts import codec as decoder_stage
from voice_clone.families.qwen3_tts.config import CodecDecoderConfig, load_config
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.codec_decoder_parts import CodecDecoderWeights
from voice_clone.families.qwen3_tts.networks.native_codec_decoder import NativeCodecDecoder
from voice_clone.layers.vocoder import ResidualUnit
from voice_clone.native.arrays import Array
from voice_clone.native.kernels.codec.product import finisher
from voice_clone.native.sizes import WIDTH
from voice_clone.native.thread_pool import ThreadPool, thread_pool
from voice_clone.settings import Settings

TOLERANCE = 1e-5  # of the waveform's RMS

ODD = CodecDecoderConfig(  # channels that fill neither vectors nor panels nor blocks of inputs; biased attention
    codebook_dim=36,
    head_dim=6,
    codebook_size=64,
    hidden_size=44,
    latent_dim=50,
    num_attention_heads=6,
    num_key_value_heads=3,
    attention_bias=True,
    sliding_window=12,
    intermediate_size=70,
    num_hidden_layers=2,
    num_quantizers=5,
    upsample_rates=(5, 3, 2),
    upsampling_ratios=(3, 2),
    decoder_dim=600,
)
SHAPES = pytest.mark.parametrize("config", [TINY, ODD], ids=["tiny", "odd"])


@cache
def both(config: CodecDecoderConfig) -> tuple[CodecDecoder, InTorch]:
    decoder = CodecDecoder(config)
    fill_random(decoder, seed=0)
    return decoder, InTorch(NativeCodecDecoder(lambda: CodecDecoderWeights(config, reader(decoder))))


def random_codes(config: CodecDecoderConfig, batch: int, frames: int) -> Tensor:
    generator = torch.Generator().manual_seed(frames)
    return torch.randint(config.codebook_size, (batch, config.num_quantizers, frames), generator=generator)


def streamed(decoder: InTorch, codes: Tensor, sizes: list[int], state: StreamState[Any]) -> Tensor:
    return torch.cat([decoder.decode_chunk(chunk, state) for chunk in torch.split(codes, sizes, dim=-1)], dim=-1)


def same(one: StreamState[Array], other: StreamState[Array]) -> bool:
    arrays = zip((one.position, *one.buffers), (other.position, *other.buffers), strict=True)
    return all(np.array_equal(a, b) for a, b in arrays)


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    differ = (actual != expected).any(0).nonzero()[:, 0].tolist()  # so is what is no number
    assert not differ, (
        f"{len(differ)} of {actual.shape[-1]} samples, from {differ[0]} to {differ[-1]}, differ by up to "
        f"{(actual - expected).abs().max()}; {thread_pool().threads} threads"
    )


def assert_same_audio(actual: Tensor, expected: Tensor) -> None:
    rms = expected.square().mean().sqrt().item()
    assert rms > 0.01, "near silence proves nothing"
    assert (expected.abs() < 1).float().mean() > 0.99, "clamped audio proves nothing"
    assert actual.shape == expected.shape
    assert (actual - expected).square().mean().sqrt().item() <= TOLERANCE * rms


@pytest.mark.parametrize("threads", [1, 3])
@SHAPES
def test_samples_are_those_of_torch(config: CodecDecoderConfig, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voice_clone.native.thread_pool._pool", ThreadPool(threads))
    monkeypatch.setattr("voice_clone.native.thread_pool.MIN_PARALLEL_MULTIPLICATIONS", 0)
    decoder, native = both(config)
    codes = random_codes(config, 2, 3 * NativeDecoder.piece_frames + 1)
    expected, state = decoder(codes), native.new_state(2)
    assert_same_audio(native.decode_chunk(codes, state), expected)
    assert state.position.tolist() == [codes.shape[-1]] * 2
    assert native.native.receptive_field == decoder.receptive_field


@SHAPES
def test_a_stream_is_the_same_bit_for_bit_in_any_chunks(config: CodecDecoderConfig) -> None:
    native = both(config)[1]
    codes = random_codes(config, 1, 50)
    states = [native.new_state(1) for _ in range(4)]
    whole = native.decode_chunk(codes, states[0])
    chooser = random.Random(0)
    for state, longest in zip(states[1:], (1, 5, 20), strict=True):
        sizes: list[int] = []
        while sum(sizes) < 50:
            sizes.append(min(chooser.randint(1, longest), 50 - sum(sizes)))
        assert_same_bits(streamed(native, codes, sizes, state), whole)
        assert same(state, states[0])


@SHAPES
def test_memory_is_made_once_for_chunks_of_any_size(config: CodecDecoderConfig) -> None:
    """What is freed to grow stays with the process."""
    native = both(config)[1]
    last, state = native.native.chains[-1], native.new_state(1)
    native.decode_chunk(random_codes(config, 1, 1), state)
    first = last.buffers
    for frames in (2, NativeDecoder.piece_frames, 3 * NativeDecoder.piece_frames):
        native.decode_chunk(random_codes(config, 1, frames), state)
        assert last.buffers is first


@SHAPES
def test_streams_do_not_know_of_each_other(config: CodecDecoderConfig) -> None:
    """Streams with different pasts share batches, leave them and go on, each as if it were alone."""
    native = both(config)[1]
    pasts = (0, 1, 7, 20)
    codes = [random_codes(config, 1, past + 18) for past in pasts]
    alone = [native.decode_chunk(each, native.new_state(1)) for each in codes]
    states = [native.new_state(1) for _ in pasts]
    heard = [native.decode_chunk(each[..., :p], s) for each, p, s in zip(codes, pasts, states, strict=True) if p]
    heard.insert(0, torch.zeros(1, 0))
    batch = StreamState.stack(states)
    together = torch.cat([each[..., past:] for each, past in zip(codes, pasts, strict=True)])
    shared = streamed(native, together[..., :11], [1, 3, 7], batch)
    assert batch.position.tolist() == [past + 11 for past in pasts]
    for i, state in enumerate(batch.split()):
        rest = streamed(native, together[i : i + 1, :, 11:], [5, 2], state)
        assert_same_bits(torch.cat((heard[i], shared[i : i + 1], rest), dim=-1), alone[i])


@SHAPES
@pytest.mark.parametrize("past", [1, 7, 45])
def test_priming_equals_decoding_the_past(config: CodecDecoderConfig, past: int) -> None:
    native = both(config)[1]
    codes = random_codes(config, 2, past + 3)
    decoded, primed = native.new_state(2), native.new_state(2)
    native.decode_chunk(codes[..., :past], decoded)
    native.prime(codes[..., :past], primed)
    assert same(primed, decoded)
    fork = primed.fork()
    assert_same_bits(native.decode_chunk(codes[..., past:], fork), native.decode_chunk(codes[..., past:], decoded))
    assert primed.position.tolist() == [past] * 2 and not same(primed, fork)


def test_any_number_of_threads_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    native = both(ODD)[1]
    codes = random_codes(ODD, 1, 9)
    monkeypatch.setattr("voice_clone.native.thread_pool.MIN_PARALLEL_MULTIPLICATIONS", 0)
    heard = []
    for threads in (1, 2, 3):
        monkeypatch.setattr("voice_clone.native.thread_pool._pool", ThreadPool(threads))
        heard.append(native.decode_chunk(codes, native.new_state(1)))
    for other in heard[1:]:
        assert_same_bits(other, heard[0])


def side_by_side(arrays: list[Array], chooser: random.Random) -> list[Array]:
    """Copies of arrays, in any order in one piece of memory, with hardly a gap."""
    room = np.zeros(sum(array.size + 16 for array in arrays), np.float32)
    placed, end = dict[int, Array](), 0
    for index in chooser.sample(range(len(arrays)), len(arrays)):
        array, end = arrays[index], end + chooser.choice((0, 0, 1, 4, 8, 16))
        placed[index] = room[end : end + array.size].reshape(array.shape)
        placed[index][...] = array
        end += array.size
    return [placed[index] for index in range(len(arrays))]


@SHAPES
def test_it_does_not_matter_where_in_memory_numbers_lie(config: CodecDecoderConfig) -> None:
    """Compilers make loops for arrays that may overlap, and ask for it with a margin."""
    native = copy.deepcopy(both(config)[1])
    decoder = native.native
    assert isinstance(decoder, NativeCodecDecoder)
    codes = random_codes(config, 1, 18)
    whole = native.decode_chunk(codes, native.new_state(1))  # takes the memory for so many frames
    chooser = random.Random(0)
    for _ in range(15):
        for chain in decoder.chains:
            arrays = [*chain.buffers, chain.residual, chain.parameters, *chain.per_thread]
            first, second, chain.residual, chain.parameters, *own = side_by_side(arrays, chooser)
            chain.buffers, chain.per_thread = (first, second), tuple(own)
        assert_same_bits(native.decode_chunk(codes, native.new_state(1)), whole)


def test_weights_are_in_memory_once() -> None:
    decoder, native = both(ODD)
    count = sum(parameter.numel() for parameter in decoder.parameters())
    units = [module for module in decoder.modules() if isinstance(module, ResidualUnit)]
    filtered = sum(unit.conv1.conv.weight.numel() for unit in units)  # 11 numbers for 7
    assert isinstance(native.native, NativeCodecDecoder)
    assert native.native.nbytes < 1.1 * 4 * (count + filtered * 4 / 7)


def test_a_bad_stream_is_seen_and_spoils_no_other() -> None:
    native = both(TINY)[1]
    codes = random_codes(TINY, 3, 6)
    state = native.new_state(3)
    state.buffers[1][1] = np.nan
    waveforms = native.decode_chunk(codes, state)
    expected = native.decode_chunk(codes, native.new_state(3))
    assert torch.equal(waveforms[[0, 2]], expected[[0, 2]]) and not waveforms[1].isfinite().all()


_snake = finisher(False, False, True)  # type: ignore[no-untyped-call]


def _snake_all(x: Array, parameters: Array, out: Array) -> None:
    for start in range(0, x.shape[0], WIDTH):
        _snake(x, start, parameters, 0, WIDTH, x, 0, out, start)


snake: Any = njit(_snake_all)


@pytest.mark.parametrize("largest", [1.6, 100.0, 2.0**18])
def test_the_square_of_the_sine_is_exact_to_rounding(largest: float) -> None:
    """alpha = 1, scale = 1: what remains after x is the square."""
    noise = np.random.default_rng(0).uniform(-largest, largest, 1 << 16).astype(np.float32)
    near = (np.arange(1 << 12, dtype=np.float32) * np.float32(np.pi / 2)).clip(-largest, largest)
    x = np.concatenate((noise, near, np.nextafter(near, np.float32(0))))
    zeros, ones = np.zeros(WIDTH, np.float32), np.ones(WIDTH, np.float32)
    out = np.empty_like(x)
    # A scale of 2 ** 30 makes x vanish beside the square.
    snake(x, np.concatenate((zeros, ones, ones * np.float32(2**30))), out)
    square = out.astype(np.float64) / 2**30 - x.astype(np.float64) / 2**30
    assert np.abs(square - np.sin(x.astype(np.float64)) ** 2).max() < 2**-21


def test_the_activation_of_what_is_no_number_is_none() -> None:
    x = np.resize(np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0, -0.0, 3e38], np.float32), WIDTH)
    out = np.empty_like(x)
    snake(x, np.concatenate((np.zeros(WIDTH), np.ones(2 * WIDTH))).astype(np.float32), out)
    finite = np.isfinite(x)
    assert not np.isfinite(out[~finite]).any()
    np.testing.assert_allclose(out[finite], x[finite], rtol=1e-6)


def test_a_cpu_serves_it(checkpoint_folder: CheckpointFactory) -> None:
    environ = {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint_folder("tiny", 0)), "VOICE_CLONE_DEVICE": "cpu"}
    native = decoder_stage.load_decoder(Settings({}, environ)).decoder
    assert isinstance(native, NativeCodecDecoder)
    decoder, _ = decoder_stage.load_torch_decoder(Settings({}, environ))
    config = load_config(checkpoint_folder("tiny", 0))
    codes = random_codes(config.codec.decoder_config, 1, 5)
    assert_same_audio(InTorch(native).decode_chunk(codes, native.new_state(1)), decoder(codes))
