"""Decoding, checking and resampling of reference clips."""

from __future__ import annotations

import base64
import contextlib
import io
import struct
import tracemalloc

import librosa
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voice_clone.audio import ClipLimits, decode, resample
from voice_clone.errors import InvalidArgument


def encode(samples: NDArray[np.float64], rate: int, format: str = "WAV", subtype: str | None = "FLOAT") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=subtype)
    return file.getvalue()


def noise(seconds: float, rate: int, channels: int = 1) -> NDArray[np.float64]:
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, (int(seconds * rate), channels))
    return samples[:, 0] if channels == 1 else samples


@pytest.mark.parametrize(
    ("format", "subtype", "mime_type"),
    [
        ("WAV", "PCM_16", "audio/wav"),
        ("WAV", "FLOAT", "audio/wav"),
        ("WAVEX", "PCM_24", "audio/wav"),
        ("FLAC", "PCM_16", "audio/flac"),
        ("OGG", "VORBIS", "audio/ogg"),
        ("OGG", "OPUS", "audio/ogg"),
        ("MP3", "MPEG_LAYER_III", "audio/mpeg"),
    ],
)
@pytest.mark.parametrize("channels", [1, 2])
def test_decode_equals_soundfile_and_the_mean_of_channels(
    format: str, subtype: str, mime_type: str, channels: int
) -> None:
    data = encode(noise(6.0, 24_000, channels), 24_000, format, subtype)  # more than one block
    clip = decode(data)
    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    expected = np.mean(samples, axis=-1) if samples.ndim > 1 else samples
    assert clip.waveform.dtype == np.float32
    np.testing.assert_array_equal(clip.waveform, expected)
    assert (clip.sample_rate, clip.mime_type, clip.encoded) == (rate, mime_type, data)
    assert clip.seconds == len(samples) / rate


def test_a_data_url_is_the_file_in_it() -> None:
    data = encode(noise(1.5, 16_000), 16_000)
    clip = decode(b"data:audio/wav;base64," + base64.b64encode(data))
    np.testing.assert_array_equal(clip.waveform, decode(data).waveform)
    assert clip.encoded == data


@pytest.mark.parametrize("seconds", [1.0, 30.0])
def test_the_limits_themselves_are_allowed(seconds: float) -> None:
    assert decode(encode(noise(seconds, 8_000), 8_000)).seconds == seconds


def _wav_of_nothing() -> bytes:
    return encode(np.zeros(0), 16_000, "WAV", "PCM_16")


def _with(value: float) -> bytes:
    samples = noise(1.0, 16_000)
    samples[77] = value
    return encode(samples, 16_000)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the audio is empty"),
        (b"this is text, not sound" * 100, "cannot be decoded"),
        (b"RIFF" + b"\xff" * 4096, "cannot be decoded"),
        (b"\0\0\0\x18ftypM4A \0\0\0\0", r"is an MP4 file \(m4a, mp4, mov or 3gp\); this server takes WAV, FLAC"),
        (b"\x1aE\xdf\xa3" + bytes(99), "is a WebM or Matroska file; this server takes WAV, FLAC"),
        (b"#!AMR\n" + bytes(99), "is an AMR file"),
        (b"data:audio/mp4;base64," + base64.b64encode(b"\0\0\0\x18ftypisom"), "is an MP4 file"),
        (b"data:text/plain;base64,AAAA", "data URL is malformed"),
        (b"data:audio/wav,AAAA", "data URL is malformed"),
        (b"data:audio/wav;base64", "data URL is malformed"),
        (b"data:audio/wav;base64,@@@@", "not valid base64"),
        (b"data:audio/wav;base64,", "cannot be decoded"),
        (_wav_of_nothing(), "no samples"),
        (encode(noise(0.999, 16_000), 16_000), "1.00 s long; it must be 1 to 30 s|0.99. s long"),
        (encode(noise(30.1, 8_000), 8_000), "30.10 s long; it must be 1 to 30 s"),
        (encode(noise(2.0, 4_000), 4_000), "sample rate is 4000 Hz; it must be 8000 to 192000 Hz"),
        (encode(noise(1.0, 384_000), 384_000), "sample rate is 384000 Hz"),
        (encode(noise(1.0, 16_000, 9), 16_000), "9 channels; at most 8"),
        (encode(noise(1.5, 16_000), 16_000, "AIFF", "PCM_16"), "AIFF file; send WAV, FLAC, OGG or MP3"),
        (_with(np.nan), "NaN or infinity"),
        (_with(np.inf), "NaN or infinity"),
    ],
)
def test_bad_audio_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        decode(data)


def test_a_file_over_the_limit_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(InvalidArgument, match="at most 1000 are allowed"):
        decode(b"x" * 1001, ClipLimits(max_bytes=1000))
    with pytest.raises(InvalidArgument, match="it may encode at most 1000 bytes"):
        decode(b"data:audio/wav;base64," + b"A" * 1501, ClipLimits(max_bytes=1000))


def test_a_decompression_bomb_is_not_decoded() -> None:
    data = encode(np.zeros((48_000 * 600, 1)), 48_000, "FLAC", "PCM_16")  # ten minutes of silence in a small file
    assert len(data) < 1 << 20
    tracemalloc.start()
    with pytest.raises(InvalidArgument, match=r"600\.00 s long"):
        decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_header_that_promises_less_or_more_than_there_is() -> None:
    data = bytearray(encode(noise(2.0, 16_000), 16_000, "WAV", "PCM_16"))
    at = data.index(b"data") + 4
    data[at : at + 4] = struct.pack("<I", 0x7FFFFFFF)  # a streamed WAV: length not known
    assert decode(bytes(data)).seconds == 2.0
    assert decode(bytes(data[: len(data) - 16_000])).seconds == 1.5  # torn, but long enough


@settings(max_examples=60)
@given(st.binary(max_size=200), st.integers(0, 400))
def test_damaged_files_give_a_clip_or_an_error_of_ours(junk: bytes, at: int) -> None:
    for data in _SAMPLES:
        damaged = data[:at] + junk + data[at + len(junk) :]
        try:
            clip = decode(damaged)
        except InvalidArgument:
            continue
        assert np.isfinite(clip.waveform).all() and 1.0 <= clip.seconds <= 30.0


_SAMPLES = [
    encode(noise(1.2, 16_000), 16_000, format, subtype)
    for format, subtype in (("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III"))
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rate", "target"), [(44_100, 24_000), (16_000, 24_000), (48_000, 16_000), (8_000, 44_100), (22_050, 24_000)]
)
@pytest.mark.parametrize("length", [1, 2, 999, 24_001])
def test_resample_equals_librosa(rate: int, target: int, length: int) -> None:
    waveform = noise(3.1, rate)[:length].astype(np.float32)
    ours = resample(waveform, rate, target)
    np.testing.assert_array_equal(ours, librosa.resample(waveform, orig_sr=rate, target_sr=target))
    assert ours.dtype == np.float32


def test_resample_to_the_same_rate_changes_nothing() -> None:
    waveform = noise(1.0, 24_000).astype(np.float32)
    np.testing.assert_array_equal(resample(waveform, 24_000, 24_000), waveform)


def streamed(data: bytes) -> bytes:
    """A FLAC file as a stream's encoder writes it: without the number of samples."""
    header = bytearray(data)
    header[21] &= 0xF0
    header[22:26] = bytes(4)
    return bytes(header)


@pytest.mark.parametrize("seconds", [1.0, 1.0001, 4.096, 29.9])
@pytest.mark.parametrize("channels", [1, 2])
def test_flac_of_unknown_length(seconds: float, channels: int) -> None:
    data = encode(noise(seconds, 16_000, channels), 16_000, "FLAC", "PCM_16")
    clip = decode(streamed(data))
    np.testing.assert_array_equal(clip.waveform, decode(data).waveform)
    assert clip.encoded == streamed(data)


@pytest.mark.parametrize(("seconds", "words"), [(0.5, "1 to 30 s"), (31.0, "1 to 30 s"), (600.0, "1 to 30 s")])
def test_flac_of_unknown_length_is_bounded(seconds: float, words: str) -> None:
    data = streamed(encode(np.zeros(int(48_000 * seconds)), 48_000, "FLAC", "PCM_16"))
    tracemalloc.start()
    with pytest.raises(InvalidArgument, match=words):
        decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_damaged_flac_of_unknown_length() -> None:
    data = streamed(encode(noise(3.0, 16_000), 16_000, "FLAC", "PCM_16"))
    rng = np.random.default_rng(0)
    for _ in range(100):
        torn = bytearray(data[: rng.integers(10, len(data))] if rng.random() < 0.5 else data)
        for at in rng.integers(0, len(torn), 3):
            torn[at] = rng.integers(256)
        with contextlib.suppress(InvalidArgument):
            assert 1.0 <= decode(bytes(torn)).seconds <= 30.0


@pytest.mark.parametrize("scale", [3e38, 1e20, 32767.0, 101.0])
def test_samples_of_another_scale_are_refused(scale: float) -> None:
    with pytest.raises(InvalidArgument, match=r"full scale is 1; scale the samples to -1\.\.1"):
        decode(encode(2.0 * noise(1.5, 16_000) * scale, 16_000))
    assert decode(encode(2.0 * noise(1.5, 16_000) * 4.0, 16_000)).seconds == 1.5
