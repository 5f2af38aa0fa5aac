"""The limiter: its peaks, its length, and that chunks do not matter."""

from __future__ import annotations

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyebur128 import MeasurementMode, R128State, get_true_peak
from voice_clone_gateway.audio import SAMPLE_RATES, Encoder
from voice_clone_sound.limiter import CEILING, LOOK_AHEAD, Limiter

from tests.support.official.encoded_sound import SOUND, Samples, encode

RATE = 24000


def limited(sound: Samples, sizes: list[int] | None = None, rate: int = RATE) -> Samples:
    limiter, out, start, turn = Limiter(rate), [], 0, 0
    while sizes and start < len(sound):
        out.append(limiter.push(sound[start : start + sizes[turn % len(sizes)]], final=False))
        start, turn = start + sizes[turn % len(sizes)], turn + 1
    return np.concatenate([*out, limiter.push(sound[len(sound) if sizes else 0 :], final=True)])


def true_peak(sound: Samples, rate: int) -> float:
    """In dBTP, by libebur128."""
    state = R128State(1, rate, MeasurementMode.MODE_TRUE_PEAK)
    state.add_frames(sound.astype(np.float64), len(sound))
    return float(20 * np.log10(get_true_peak(state, 0)))


def bursts(seconds: float, rate: int, gain: float, seed: int = 3) -> Samples:
    """Noise that comes and goes, of three quarters of the band."""
    count = int(seconds * rate)
    swell = np.abs(np.sin(np.arange(count) * 9.0 / rate)) ** 4
    noise = soxr.resample(np.random.default_rng(seed).standard_normal(count), 3, 4)[:count]
    sound: Samples = (gain * swell * noise).astype(np.float32)
    return sound


@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=9).filter(any),
    rate=st.sampled_from(SAMPLE_RATES),
    count=st.integers(0, 9000),
    gain=st.sampled_from((0.05, 0.3, 1.0, 5.0)),
)
@settings(max_examples=80)
def test_the_samples_do_not_depend_on_the_chunks(sizes: list[int], rate: int, count: int, gain: float) -> None:
    sound = bursts(9001 / rate, rate, gain)[:count]
    whole = limited(sound, rate=rate)
    assert len(whole) == count
    assert np.array_equal(limited(sound, sizes, rate), whole)


@pytest.mark.parametrize("rate", SAMPLE_RATES)
@pytest.mark.parametrize("gain", (0.5, 2.0))
def test_no_true_peak_is_above_the_ceiling(rate: int, gain: float) -> None:
    sound = bursts(2, rate, gain)
    assert true_peak(sound, rate) > 0
    assert CEILING - 0.5 < true_peak(limited(sound, rate=rate), rate) <= -1


def test_a_peak_between_two_samples_is_found() -> None:
    sine = (0.99 * np.sin(np.pi / 4 + np.pi / 2 * np.arange(RATE))).astype(np.float32)  # samples of 0.7, peaks of 0.99
    assert true_peak(sine, RATE) > -0.2 > CEILING > 20 * np.log10(np.abs(sine).max())
    assert true_peak(limited(sine), RATE) <= -1


def test_samples_far_from_a_peak_keep_their_bits() -> None:
    sound = np.concatenate([SOUND, SOUND]) * np.float32(0.5)
    assert np.array_equal(limited(sound), sound)
    peak = len(SOUND)
    sound[peak : peak + 20] = 2.0
    reach = 2 * round(LOOK_AHEAD * RATE) + 8
    changed = np.flatnonzero(limited(sound) != sound)
    assert peak - reach <= changed[0] < peak and peak + 20 <= changed[-1] <= peak + 20 + reach


def test_an_encoder_limits_at_the_rate_that_is_heard() -> None:
    def samples(limit: bool) -> NDArray[np.int16]:
        encoder = Encoder("pcm", RATE, 8000, 1.3, limited=limit)
        return np.frombuffer(b"".join(encode(encoder, bursts(2, RATE, 1.0))), "<i2")

    kept, free = samples(True), samples(False)
    assert len(kept) == len(free)
    assert true_peak(free.astype(np.float32) / 32768, 8000) > -0.1
    assert true_peak(kept.astype(np.float32) / 32768, 8000) <= -1
