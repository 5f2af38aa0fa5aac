"""The gateway's audio in time: how soon it leaves, in whatever chunks, and at which speed."""

from __future__ import annotations

import io
from itertools import cycle

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from voice_clone_gateway.audio import FORMATS, SAMPLE_RATES, Encoder
from voice_clone_gateway.audio.resampler import Resampler
from voice_clone_sound.tempo import Tempo

from tests.support.official.encoded_sound import CHUNK, RATE, SOUND, Samples, decode, encode, pcm, to_int16

# ----------------------------------------------------------------------------------------------------- while it streams


@pytest.mark.parametrize(("name", "milliseconds"), (("wav", 80), ("pcm", 80), ("flac", 80), ("opus", 60), ("mp3", 72)))
def test_sound_leaves_with_the_first_chunk(name: str, milliseconds: int) -> None:
    encoder = Encoder(name, RATE)
    got = decode(name, encoder.encode(SOUND[:CHUNK]), RATE)
    held = 312 / 48 if name == "opus" else 0  # its look-ahead, which the player cuts off
    assert 1000 * len(got.samples) / got.rate == pytest.approx(milliseconds - held, abs=24 if name == "mp3" else 0.1)


def test_aac_leaves_with_the_second_chunk() -> None:
    encoder = Encoder("aac", RATE)
    assert encoder.encode(SOUND[:CHUNK]) == b""  # a frame and its look-ahead are 85 ms
    assert encoder.encode(SOUND[CHUNK : 2 * CHUNK]) != b""


@pytest.mark.parametrize(("rate", "milliseconds"), ((8000, 80), (16000, 40), (22050, 40), (44100, 40), (48000, 40)))
def test_the_resampler_gives_sound_early(rate: int, milliseconds: int) -> None:
    assert len(Resampler(RATE, rate).push(SOUND[: RATE * milliseconds // 1000], final=False))


@pytest.mark.parametrize(
    ("speed", "milliseconds"), ((0.25, 60), (0.5, 40), (0.8, 50), (1.25, 50), (2.0, 70), (4.0, 200))
)
def test_the_tempo_gives_sound_early(speed: float, milliseconds: int) -> None:
    assert len(Tempo(RATE, speed).push(SOUND[: RATE * milliseconds // 1000], final=False))


@pytest.mark.parametrize("name", FORMATS)
def test_the_bytes_of_a_whole_file_leave_at_the_end(name: str) -> None:
    *before, last = encode(Encoder(name, RATE, streaming=False), SOUND)
    assert not any(before)
    assert last


chunk_sizes = st.lists(st.integers(0, 5000), min_size=1, max_size=12).filter(any)


@pytest.mark.parametrize("name", FORMATS)
@given(sizes=chunk_sizes, rate=st.sampled_from(SAMPLE_RATES), speed=st.sampled_from((1.0, 0.6, 1.7)))
@settings(max_examples=8)
def test_the_bytes_do_not_depend_on_the_chunks(name: str, sizes: list[int], rate: int, speed: float) -> None:
    rate = rate if rate in FORMATS[name].sample_rates else FORMATS[name].sample_rates[-1]
    sound = SOUND[: RATE // 2]
    streamed = encode(Encoder(name, RATE, rate, speed), sound, sizes)
    assert b"".join(streamed) == b"".join(encode(Encoder(name, RATE, rate, speed), sound, [len(sound)]))


@given(count=st.integers(0, 3000), rate_in=st.sampled_from(SAMPLE_RATES), rate_out=st.sampled_from(SAMPLE_RATES))
@settings(max_examples=60)
def test_the_resampler_s_length_is_the_ratio_s(count: int, rate_in: int, rate_out: int) -> None:
    encoder = Encoder("pcm", rate_in, rate_out)
    data = b"".join(encode(encoder, SOUND[:count], [777]))
    assert len(data) == 2 * encoder.samples
    assert abs(encoder.samples - count * rate_out / rate_in) <= 0.5


# ------------------------------------------------------------------------------------------------------------ the speed


def frequency(samples: Samples, rate: int) -> float:
    """Of the strongest tone, in Hz, by the parabola through the peak of the spectrum."""
    level = np.log(np.abs(np.fft.rfft(samples * np.hanning(len(samples)))) + 1e-12)
    peak = int(np.argmax(level))
    left, middle, right = level[peak - 1 : peak + 2]
    return float((peak + 0.5 * (left - right) / (left - 2 * middle + right)) * rate / len(samples))


SPEEDS = (0.25, 0.4, 0.5, 0.75, 1.01, 1.25, 2.0, 3.0, 4.0)


@pytest.mark.parametrize("hertz", (120.0, 440.0, 1200.0))
@pytest.mark.parametrize("speed", SPEEDS)
def test_the_speed_changes_the_duration_and_not_the_pitch(speed: float, hertz: float) -> None:
    sine = (0.5 * np.sin(2 * np.pi * hertz * np.arange(2 * RATE) / RATE)).astype(np.float32)
    data = b"".join(encode(Encoder("pcm", RATE, speed=speed), sine))
    made = np.frombuffer(data, "<i2").astype(np.float32)
    assert len(made) == round(2 * RATE / speed)
    assert frequency(made, RATE) == pytest.approx(hertz, rel=0.01)


@pytest.mark.parametrize("speed", SPEEDS)
def test_all_of_a_speech_is_there_at_its_time(speed: float, reference_clip: bytes) -> None:
    speech, rate = soundfile.read(io.BytesIO(reference_clip), dtype="float32")
    tempo = Tempo(rate, speed)
    made = np.concatenate([tempo.push(speech[i : i + 1764], final=False) for i in range(0, len(speech), 1764)])
    made = np.concatenate([made, tempo.push(np.zeros(0, np.float32), final=True)])
    assert len(made) == round(len(speech) / speed)

    # the loudness over time is the original's, faster or slower
    def loudness(samples: Samples) -> NDArray[np.float64]:
        return np.array([np.sqrt(np.mean(part.astype(np.float64) ** 2)) for part in np.array_split(samples, 50)])

    assert np.corrcoef(loudness(made), loudness(speech))[0, 1] > 0.9


@given(count=st.integers(0, 20_000), speed=st.floats(0.25, 4.0), sizes=chunk_sizes, rate=st.sampled_from(SAMPLE_RATES))
@settings(max_examples=60)
def test_at_any_speed_the_length_is_exact_and_the_chunks_do_not_matter(
    count: int, speed: float, sizes: list[int], rate: int
) -> None:
    sound = SOUND[:count]
    tempo, parts, start = Tempo(rate, speed), [], 0
    for size in cycle(sizes):
        parts.append(tempo.push(sound[start : start + size], final=start + size >= count))
        if (start := start + size) >= count:
            break
    made = np.concatenate(parts)
    assert len(made) == round(count / speed)
    assert np.array_equal(made, Tempo(rate, speed).push(sound, final=True))


def test_speed_and_rate_together() -> None:
    encoder = Encoder("flac", RATE, 8000, 1.5)
    got = decode("flac", b"".join(encode(encoder, SOUND)), 8000)
    assert len(got.samples) == encoder.samples == round(round(len(SOUND) / 1.5) / 3)
    assert encoder.seconds == pytest.approx(len(SOUND) / RATE / 1.5, abs=1e-3)
    assert np.array_equal(to_int16(got.samples), pcm(8000, 1.5))
