"""code2wav: streamed equals whole, batched equals alone, and a state can be forked, stacked and taken apart."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from tests.support.families.random_weights import fill_random
from tests.support.families.small_codec import SMALL
from voice_clone.codec.decoder import StreamState
from voice_clone.families.qwen3_tts.config import CodecDecoderConfig, CodecEncoderConfig
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder

# Relative to the waveform's RMS: the error's RMS and its peak. fp32 sums depend on the shapes that a kernel sees; a
# whole decode and a streamed one are equally far from the fp64 result, by a peak of up to 4e-5 over 1.5 M samples.
RMS_TOLERANCE, PEAK_TOLERANCE = 1e-5, 1e-4

RELEASED_RATES = CodecDecoderConfig(  # 1920 samples a frame and the window of 72, few channels
    codebook_dim=16,
    head_dim=8,
    codebook_size=64,
    hidden_size=16,
    latent_dim=16,
    num_attention_heads=2,
    num_key_value_heads=2,
    intermediate_size=32,
    num_hidden_layers=2,
    decoder_dim=32,
)


def make_decoder(config: CodecDecoderConfig) -> CodecDecoder:
    decoder = CodecDecoder(config)
    fill_random(decoder, seed=0)
    return decoder


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    return make_decoder(SMALL)


def random_codes(config: CodecDecoderConfig, batch: int, frames: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.codebook_size, (batch, config.num_quantizers, frames), generator=generator)


def decode_in_chunks(decoder: CodecDecoder, codes: Tensor, sizes: list[int], state: StreamState) -> Tensor:
    return torch.cat([decoder.decode_chunk(chunk, state) for chunk in torch.split(codes, sizes, dim=-1)], dim=-1)


def assert_same_audio(actual: Tensor, expected: Tensor) -> None:
    rms = expected.square().mean().sqrt().item()
    assert rms > 0.01, "near silence proves nothing"
    assert (expected.abs() < 1).float().mean() > 0.99, "clamped audio proves nothing"
    assert actual.shape == expected.shape
    error = actual - expected
    assert error.square().mean().sqrt().item() <= RMS_TOLERANCE * rms
    assert error.abs().max().item() <= PEAK_TOLERANCE * rms


def test_streamed_equals_whole_at_released_rates_with_every_size() -> None:
    decoder = make_decoder(RELEASED_RATES)
    sizes = random.Random(0).sample(range(1, 41), 40)  # 820 frames
    codes = random_codes(RELEASED_RATES, 1, sum(sizes), seed=1)
    whole = decoder(codes)
    assert whole.shape == (1, 820 * 1920)
    assert_same_audio(decode_in_chunks(decoder, codes, sizes, decoder.new_state(1)), whole)


def test_frame_does_not_depend_on_the_future_nor_the_whole_on_its_length(decoder: CodecDecoder) -> None:
    codes = random_codes(SMALL, 1, 60, seed=2)
    changed = codes.clone()
    changed[..., 30:] = (changed[..., 30:] + 1) % SMALL.codebook_size
    before, after, short = decoder(codes), decoder(changed), decoder(codes[..., :30])
    assert_same_audio(after[:, : 30 * 24], before[:, : 30 * 24])
    assert_same_audio(short, before[:, : 30 * 24])
    assert not torch.allclose(after[:, 30 * 24 :], before[:, 30 * 24 :], atol=0.01)


def test_whole_past_counts_through_the_window(decoder: CodecDecoder) -> None:
    """Positions count on and the caches carry over: a stream that forgot its past would sound different."""
    codes = random_codes(SMALL, 1, 50, seed=3)
    state = decoder.new_state(1)
    decoder.decode_chunk(codes[..., :30], state)
    forgetful = decoder(codes[..., 30:])
    assert not torch.allclose(decoder.decode_chunk(codes[..., 30:], state), forgetful, atol=0.01)


def test_streams_leave_a_batch_and_go_on(decoder: CodecDecoder) -> None:
    codes = random_codes(SMALL, 3, 40, seed=4)
    batch = decoder.new_state(3)
    start = decoder.decode_chunk(codes[..., :17], batch)
    for i, state in enumerate(batch.split()):
        rest = decode_in_chunks(decoder, codes[i : i + 1, :, 17:], [5, 18], state)
        assert_same_audio(torch.cat((start[i : i + 1], rest), dim=-1), decoder(codes[i : i + 1]))


def test_primed_state_serves_many_streams(decoder: CodecDecoder) -> None:
    """The state after a reference is computed once; what streams do with their forks does not change it."""
    reference = random_codes(SMALL, 1, 33, seed=5)
    primed = decoder.new_state(1)
    decoder.decode_chunk(reference, primed)
    for seed in (6, 7):
        codes = random_codes(SMALL, 1, 25, seed)
        state = primed.fork()
        whole = decoder(torch.cat((reference, codes), dim=-1))
        assert_same_audio(decode_in_chunks(decoder, codes, [1, 2, 4, 8, 10], state), whole[:, 33 * 24 :])
        assert primed.position.tolist() == [33]
        assert state.position.tolist() == [58]


@pytest.mark.parametrize("past", [1, 2, 7, 30, 60])
@pytest.mark.parametrize("config", [SMALL, RELEASED_RATES], ids=["small", "released rates"])
def test_priming_equals_decoding_the_past(config: CodecDecoderConfig, past: int) -> None:
    decoder = make_decoder(config)
    codes = random_codes(config, 1, past + 5, seed=past)
    decoded, primed = decoder.new_state(1), decoder.new_state(1)
    decoder.decode_chunk(codes[..., :past], decoded)
    decoder.prime(codes[..., :past], primed)
    assert primed.position == decoded.position
    rest = codes[..., past:]
    assert_same_audio(decoder.decode_chunk(rest, primed), decoder.decode_chunk(rest, decoded))


def test_priming_skips_what_the_convolutions_have_forgotten() -> None:
    decoder = make_decoder(RELEASED_RATES)
    assert 8 <= decoder.receptive_field <= 16
    codes = random_codes(RELEASED_RATES, 1, 40, seed=1)
    forgetful = decoder.new_state(1)
    object.__setattr__(decoder, "receptive_field", 2)
    decoder.prime(codes, forgetful)
    exact = decoder.new_state(1)
    decoder.decode_chunk(codes, exact)
    difference = decoder.decode_chunk(codes[..., :1], forgetful) - decoder.decode_chunk(codes[..., :1], exact)
    assert difference.abs().max() > 1e-3, "a receptive field that is too short would pass unnoticed"


def test_state_does_not_grow_and_owns_its_memory(decoder: CodecDecoder) -> None:
    state = decoder.new_state(2)
    size = state.nbytes
    assert size == sum(t.numel() * t.element_size() for t in [state.position, *state.buffers])
    for frames in (1, 40, 3):
        decoder.decode_chunk(random_codes(SMALL, 2, frames, seed=8), state)
        assert state.nbytes == size
        assert sum(buffer.untyped_storage().nbytes() for buffer in state.buffers) == size - state.position.nbytes
    singles = state.split()
    assert sum(single.nbytes for single in singles) == size
    assert all(b.untyped_storage().nbytes() == b.nbytes for single in singles for b in single.buffers)
    assert StreamState.stack(singles).nbytes == size


def test_networks_build_on_the_meta_device_and_load_by_assignment(decoder: CodecDecoder) -> None:
    with torch.device("meta"):
        empty = CodecDecoder(SMALL)
    empty.load_state_dict(decoder.state_dict(), assign=True)
    codes = random_codes(SMALL, 1, 12, seed=9)
    assert torch.equal(empty(codes), decoder(codes))

    config = CodecEncoderConfig(num_filters=2, hidden_size=16, num_hidden_layers=1, head_dim=2, intermediate_size=16)
    encoder = CodecEncoder(config, num_quantizers=3)
    fill_random(encoder, seed=0)
    with torch.device("meta"):
        empty_encoder = CodecEncoder(config, num_quantizers=3)
    empty_encoder.load_state_dict(encoder.state_dict(), assign=True)
    waveform = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    codes = encoder.encode(waveform)
    assert codes.shape == (3, 3)
    assert torch.equal(empty_encoder.encode(waveform), codes)
