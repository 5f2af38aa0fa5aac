"""The AudioVAE's native decoder: torch's samples, and a stream's own bits, however it is cut and beside whatever."""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.families.in_torch import InTorch
from tests.support.families.random_weights import fill_random
from tests.support.families.speech_like import rms
from tests.support.families.voxcpm2_audio import AUDIO_VAE_SHAPES
from voice_clone.codec.decoder import StreamState
from voice_clone.families.voxcpm2.audio_vae_config import WIDTH
from voice_clone.families.voxcpm2.networks.audio_decoder import AudioDecoder
from voice_clone.families.voxcpm2.networks.native_audio_decoder import NativeAudioDecoder
from voice_clone.layers.convolution import CausalConv1d
from voice_clone.layers.vocoder import Affine, Snake
from voice_clone.native.codec.chain_builder import ChainBuilder
from voice_clone.native.codec.chain_builder import Snake as SnakeActivation
from voice_clone.native.thread_pool import ThreadPool

pytestmark = pytest.mark.thorough

TOLERANCE = 1e-5  # of the RMS
SHAPES = pytest.mark.parametrize("shape", AUDIO_VAE_SHAPES)


@cache
def both(shape: str) -> tuple[AudioDecoder, InTorch]:
    decoder = AudioDecoder(AUDIO_VAE_SHAPES[shape])
    fill_random(decoder, seed=0)
    given = copy.deepcopy(decoder)
    return decoder, InTorch(NativeAudioDecoder(lambda: given))


def some_frames(batch: int, count: int, seed: int = 0) -> Tensor:
    return torch.randn(batch, WIDTH, count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("threads", [1, 3])
@SHAPES
def test_samples_are_those_of_torch(shape: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voice_clone.native.thread_pool._pool", ThreadPool(threads))
    monkeypatch.setattr("voice_clone.native.thread_pool.MIN_PARALLEL_MULTIPLICATIONS", 0)
    decoder, native = both(shape)
    frames, state = some_frames(2, 13), native.new_state(2)
    expected, got = decoder(frames), native.decode_chunk(frames, state)
    assert got.shape == expected.shape and 0.01 < rms(expected) < 0.95
    assert rms(got - expected) < TOLERANCE * rms(expected)
    assert state.position.tolist() == [13, 13]


@SHAPES
def test_a_stream_is_the_same_bit_for_bit_in_any_chunks_and_beside_any_others(shape: str) -> None:
    native = both(shape)[1]
    frames = [some_frames(1, 17, seed) for seed in range(5)]
    whole = [native.decode_chunk(each, native.new_state(1)) for each in frames]
    for sizes in ([1] * 17, [5, 1, 11], [16, 1]):
        state = native.new_state(1)
        parts = [native.decode_chunk(part, state) for part in torch.split(frames[0], sizes, dim=2)]
        assert torch.equal(torch.cat(parts, dim=1), whole[0])
    states = [native.new_state(1) for _ in frames]
    for past, (each, state) in enumerate(zip(frames, states, strict=True)):
        if past:
            native.decode_chunk(each[..., :past], state)
    together = StreamState.stack(states)
    got = native.decode_chunk(torch.cat([each[..., past : past + 9] for past, each in enumerate(frames)]), together)
    per = whole[0].shape[1] // 17
    for past, (samples, expected) in enumerate(zip(got, whole, strict=True)):
        assert torch.equal(samples, expected[0, past * per : (past + 9) * per])
    for past, (each, state, expected) in enumerate(zip(frames, together.split(), whole, strict=True)):
        assert torch.equal(native.decode_chunk(each[..., past + 9 :], state)[0], expected[0, (past + 9) * per :])


def test_a_state_is_not_written_to() -> None:
    """What several streams go on from stays as it is."""
    native = both("tiny")[1]
    primed = native.new_state(1)
    native.prime(some_frames(1, 3), primed)
    kept, frames = [each.copy() for each in primed.buffers], some_frames(1, 4, 1)
    first, second = (native.decode_chunk(frames, primed.fork()) for _ in range(2))
    assert torch.equal(first, second) and all(map(np.array_equal, kept, primed.buffers))
    assert not torch.equal(first, native.decode_chunk(frames, native.new_state(1)))


@pytest.mark.parametrize("snake", [False, True])
@pytest.mark.parametrize(("channels", "taps", "dilation"), [(5, 7, 1), (16, 7, 9), (40, 3, 2), (64, 1, 1)])
def test_a_filter_is_a_depthwise_convolution(channels: int, taps: int, dilation: int, snake: bool) -> None:
    """As the first layer of a chain, which remembers rows of its own."""
    module = CausalConv1d(channels, channels, taps, dilation=dilation, groups=channels)
    activation = Snake(channels) if snake else nn.Identity()
    fill_random(module, seed=1)
    fill_random(activation, seed=2)
    chain = ChainBuilder(channels)
    chain.filter(
        module.conv.weight,
        module.conv.bias,
        dilation,
        activation=SnakeActivation(*activation.factors) if snake else None,
    )
    built = chain.build()
    x, position = torch.randn(2, 30, channels, generator=torch.Generator().manual_seed(0)), np.zeros(2, np.int64)
    with torch.no_grad():
        expected = activation(module(x.transpose(1, 2))).transpose(1, 2)
    for sizes in ([30], [1, 2, 27], [10, 10, 10]):
        state, parts = built.new_state(2), []
        for part in torch.split(x, sizes, dim=1):
            rows, state = built(part.numpy(), state, position)
            parts.append(rows.copy())
        torch.testing.assert_close(torch.from_numpy(np.concatenate(parts, axis=1)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("channels", "stride", "taps"), [(5, 2, 2), (16, 5, 2), (20, 4, 3), (3, 8, 1)])
@torch.no_grad()
def test_a_convolution_with_a_stride(channels: int, stride: int, taps: int) -> None:
    """Frames have twice as many rows as the stride."""
    first, second = CausalConv1d(channels, channels, 3), CausalConv1d(channels, 7, stride * taps, stride)
    fill_random(first, seed=1)
    fill_random(second, seed=2)
    chain = ChainBuilder(channels, 2 * stride)
    chain.convolution(first.conv.weight, first.conv.bias)
    chain.strided(second.conv.weight, second.conv.bias, stride)
    built, x = chain.build(), torch.randn(2, 24 * stride, channels, generator=torch.Generator().manual_seed(0))
    expected = second(first(x.transpose(1, 2))).transpose(1, 2)
    for sizes in ([12], [1, 4, 7]):
        state, parts = built.new_state(2), []
        for part in torch.split(x, [2 * stride * size for size in sizes], dim=1):
            rows, state = built(part.numpy(), state, np.zeros(2, np.int64))
            parts.append(rows.copy())
        torch.testing.assert_close(torch.from_numpy(np.concatenate(parts, axis=1)), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="must not be the first layer"):
        ChainBuilder(channels, stride).strided(second.conv.weight, second.conv.bias, stride)


@pytest.mark.parametrize("added", [False, True])
@torch.no_grad()
def test_snake_of_a_scaled_and_shifted_sum(added: bool) -> None:
    """The residual signal, on which the next layers build, is neither scaled nor shifted."""
    size = 20
    first, second, third = (CausalConv1d(size, size, 1) for _ in range(3))
    affine, snake = Affine(size), Snake(size)
    for number, module in enumerate((first, second, third, affine, snake)):
        fill_random(module, seed=number)
    affine.shift.add_(0.5)
    affine.scale[0] = 0.0  # no reason to divide by it
    activation = SnakeActivation(*snake.factors, (affine.scale, affine.shift))
    chain = ChainBuilder(size)
    weights = [(module.conv.weight, module.conv.bias) for module in (first, second, third)]
    chain.convolution(*weights[0], residual="set")
    chain.convolution(*weights[1], activation=activation, residual="added" if added else "untouched")
    chain.convolution(*weights[2], residual="added")
    built, x = chain.build(), torch.randn(1, 9, size, generator=torch.Generator().manual_seed(0))
    got, _ = built(x.numpy(), built.new_state(1), np.zeros(1, np.int64))
    residual = first(x.transpose(1, 2))
    hidden = second(residual)
    if added:
        residual = hidden = residual + hidden
    expected = residual + third(snake(affine(hidden)))
    torch.testing.assert_close(torch.from_numpy(got), expected.transpose(1, 2), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="set by a layer without scale and shift"):
        ChainBuilder(size).convolution(*weights[0], activation=activation, residual="set")
