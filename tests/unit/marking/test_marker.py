"""A marked stream: the same samples however it comes, none late, and nothing but the pattern of the mark."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.same_audio import assert_same_audio
from voice_clone.errors import InvalidArgument
from voice_clone.marking.mark_filter import minimum_phase, pattern
from voice_clone.marking.marker import PerthMarker
from voice_clone.marking.network import BAND, BANDS, RATE, PerthNetwork, levels
from voice_clone.marking.weights import load_weights
from voice_clone_server.demo import CLIP

FAMILY_RATES = (24_000, 44_100, 48_000)

Samples = NDArray[np.float32]


@pytest.fixture(scope="module")
def marker() -> PerthMarker:
    return PerthMarker(24_000)


@pytest.fixture(scope="module")
def network() -> PerthNetwork:
    return PerthNetwork(load_weights())


@pytest.fixture(scope="module")
def speech() -> Samples:
    samples: Samples = soundfile.read(CLIP, dtype="float32")[0]
    return samples


def whole(marker: PerthMarker, samples: Samples) -> Samples:
    return marker.mark([marker.open()], [samples])[0]


@given(cuts=st.lists(st.integers(0, 48_000), max_size=12))
@settings(max_examples=25, deadline=None)
def test_streamed_equals_whole(marker: PerthMarker, speech: Samples, cuts: list[int]) -> None:
    speech = speech[:48_000]
    stream, borders = marker.open(), [0, *sorted(cuts), len(speech)]
    parts = [marker.mark([stream], [speech[a:b]])[0] for a, b in pairwise(borders)]
    assert [len(part) for part in parts] == [b - a for a, b in pairwise(borders)], "every sample at once"
    assert_same_audio(np.concatenate(parts), whole(marker, speech))


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_neighbours_change_nothing(marker: PerthMarker, speech: Samples, data: st.DataObject) -> None:
    """Streams that begin at any time, with chunks of any lengths, in one batch."""
    starts = data.draw(st.lists(st.integers(0, 60_000), min_size=2, max_size=4))
    streams, given_samples = [marker.open() for _ in starts], [[np.zeros(0, np.float32)] for _ in starts]
    made: list[list[Samples]] = [[] for _ in starts]
    for _ in range(3):
        sizes = [data.draw(st.integers(0, 4_000)) for _ in starts]
        parts = []
        for place, size in enumerate(sizes):
            done = starts[place] + sum(map(len, given_samples[place]))
            parts.append(speech[done : done + size])
            given_samples[place].append(parts[-1])
        for mine, part in zip(made, marker.mark(streams, parts), strict=True):
            mine.append(part)
    for mine, mine_given in zip(made, given_samples, strict=True):
        alone = whole(marker, np.concatenate(mine_given))
        np.testing.assert_allclose(np.concatenate(mine), alone, atol=2e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_marks_as_a_cpu(marker: PerthMarker, speech: Samples) -> None:
    on_gpu = PerthMarker(24_000, "cuda")
    stream = on_gpu.open()
    parts = [on_gpu.mark([stream], [speech[start : start + 1920]])[0] for start in range(0, len(speech), 1920)]
    assert_same_audio(np.concatenate(parts), whole(marker, speech))


def test_a_failure_moves_no_stream_on(marker: PerthMarker, speech: Samples) -> None:
    first, second = marker.open(), marker.open()
    before = marker.mark([first, second], [speech[:5000], speech[5000:10_000]])
    with pytest.raises(ValueError, match="shorter"):
        marker.mark([first, second], [speech[:100]])
    after = marker.mark([first], [speech[5000:9000]])[0]
    assert_same_audio(np.concatenate([before[0], after]), whole(marker, speech[:9000]))


def test_the_marked_samples_stay_in_range(marker: PerthMarker, speech: Samples) -> None:
    loud = speech / np.abs(speech).max()
    assert np.abs(whole(marker, loud)).max() == 1.0
    assert np.abs(whole(marker, 0.5 * loud)).max() < 1.0


def test_silence_stays_silent(marker: PerthMarker) -> None:
    assert not whole(marker, np.zeros(30_000, np.float32)).any()


@pytest.mark.parametrize("rate", [8_000, *FAMILY_RATES])
def test_the_filter_has_the_gains_of_the_pattern(network: PerthNetwork, rate: int) -> None:
    gains = pattern(network)
    assert gains.shape == (BANDS,) and 1.5 < np.abs(gains).mean() < 2.0
    taps = minimum_phase(gains, rate)
    points = 1 << 18
    decibels = 20 * np.log10(np.abs(np.fft.rfft(taps, points)))
    at_bands = np.round(np.arange(BANDS) * BAND * points / rate).astype(int)
    np.testing.assert_allclose(decibels[at_bands], gains, atol=0.05)
    above = decibels[round(2_050 * points / rate) :]
    assert np.abs(above).max() < 0.05, "nothing above the bands is touched"
    energy = np.cumsum(taps.astype(np.float64) ** 2) / np.sum(taps.astype(np.float64) ** 2)
    assert energy[round(0.001 * rate)] > 0.85, "the sound comes at once"


def test_the_network_proposes_the_pattern_for_any_sound(network: PerthNetwork, speech: Samples) -> None:
    """What `mark_filter` rests on: one pattern for speech and noise, loud and soft, at all times."""
    noise = np.random.default_rng(1).standard_normal(3 * RATE).astype(np.float32)
    clip = np.interp(np.arange(0, len(speech), 1.5), np.arange(len(speech)), speech).astype(np.float32)
    for sound in (clip, 0.01 * clip, 0.3 * noise, 0.001 * noise):
        gains = network.gains(levels(torch.from_numpy(sound))).numpy()[:, 20:-20]
        assert np.corrcoef(gains.mean(1), pattern(network))[0, 1] > 0.995
        assert gains.std(1).mean() < 0.2


def test_a_rate_that_holds_no_bands_is_refused(network: PerthNetwork) -> None:
    with pytest.raises(InvalidArgument, match="must have 8000 Hz or more"):
        minimum_phase(pattern(network), 4_000)
