"""The audio files that the gateway sends: format, rate, length, content, media type."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from voice_clone_client import pcm16
from voice_clone_gateway.audio import FORMATS, SAMPLE_RATES, Encoder

from tests.support.official.encoded_sound import (
    EXACT,
    HEADERLESS,
    RATE,
    SOUND,
    WAVS,
    Samples,
    decode,
    encode,
    file,
    pcm,
    to_int16,
)

CODECS = {
    "wav": "pcm_s16le",
    "pcm": "pcm_s16le",
    "flac": "flac",
    "mp3": "mp3float",
    "opus": "opus",
    "aac": "aac",
    "mulaw": "pcm_mulaw",
    "alaw": "pcm_alaw",
    "pcm_f32": "pcm_f32le",
    "wav_mulaw": "pcm_mulaw",
    "wav_alaw": "pcm_alaw",
    "wav_f32": "pcm_f32le",
}
SNDFILE = {
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "opus": ("OGG", "OPUS"),
    **{name: ("RAW", subtype) for name, (_, subtype) in HEADERLESS.items()},
    **{name: ("WAV", subtype) for name, subtype in WAVS.items()},
}
EVERY = [
    pytest.param(name, rate, streaming, id=f"{name}-{rate}-{'streamed' if streaming else 'whole'}")
    for name, entry in FORMATS.items()
    for rate, streaming in product(entry.sample_rates, (True, False))
]


@cache
def expected(rate: int) -> Samples:
    return soxr.resample(SOUND, RATE, rate, quality="HQ") if rate != RATE else SOUND


def lag(decoded: Samples, original: Samples) -> int:
    """By how many samples the first is later than the second."""
    size = 1 << (len(decoded) + len(original)).bit_length()
    correlation = np.fft.irfft(np.fft.rfft(decoded, size) * np.conj(np.fft.rfft(original, size)))
    best = int(np.argmax(correlation))
    return best if best < size // 2 else best - size


@pytest.mark.parametrize(("name", "rate", "streaming"), EVERY)
def test_ffmpeg_reads_every_format_at_every_rate(name: str, rate: int, streaming: bool) -> None:
    data = file(name, rate, streaming=streaming)
    got = decode(name, data, rate)
    assert got.codec == CODECS[name]
    assert got.channels == 1
    assert got.rate == (48000 if name == "opus" else rate)
    reference = expected(rate)
    assert len(pcm(rate)) == len(reference)
    decoded = soxr.resample(got.samples, got.rate, rate) if got.rate != rate else got.samples

    # length: exact, or with the delay and the last frame that the format cannot cut
    if name in EXACT:
        assert len(got.samples) == round(len(reference) * got.rate / rate)
        late = 0
    elif name == "mp3" and not streaming:  # the Xing frame tells delay and length
        assert abs(len(decoded) - len(reference)) < 100
        late = 0
    else:
        late = {"mp3": 1105, "aac": 1024}[name]
        assert late <= len(decoded) - len(reference) < late + 2 * 1152

    # content
    assert lag(decoded, reference) == late
    aligned = decoded[late : late + len(reference)]
    error = aligned - reference[: len(aligned)]
    assert np.mean(error**2) < 0.01 * np.mean(reference**2)


@pytest.mark.parametrize(("name", "rate", "streaming"), EVERY)
def test_libsndfile_reads_what_it_knows(name: str, rate: int, streaming: bool) -> None:
    data = file(name, rate, streaming=streaming)
    if name == "aac":
        with pytest.raises(soundfile.LibsndfileError):  # it knows no AAC
            soundfile.info(io.BytesIO(data))
        return
    given = {"samplerate": rate, "channels": 1, "format": "RAW", "endian": "LITTLE"} if name in HEADERLESS else {}
    if name in HEADERLESS:
        given["subtype"] = HEADERLESS[name][1]
    with soundfile.SoundFile(io.BytesIO(data), **given) as sound:
        assert (sound.format, sound.subtype) == SNDFILE[name]
        assert (sound.samplerate, sound.channels) == (rate, 1)
        if name == "flac" and streaming:
            assert sound.frames == 2**63 - 1  # its word for unknown
            return
        frames = len(sound.read())
    slack = 0 if name in EXACT else (100 if not streaming else 1105 + 2 * 1152)
    assert 0 <= frames - len(expected(rate)) <= slack


@pytest.mark.skipif(shutil.which("ffprobe") is None, reason="ffprobe is not installed (Debian: apt-get install ffmpeg)")
@pytest.mark.parametrize("streaming", (True, False))
@pytest.mark.parametrize("name", FORMATS)
def test_ffprobe_agrees(name: str, streaming: bool, tmp_path: Path) -> None:
    encoder = Encoder(name, RATE, streaming=streaming)
    path = tmp_path / "speech"
    path.write_bytes(b"".join(encode(encoder, SOUND)))
    given = ["-f", HEADERLESS[name][0], "-ar", str(encoder.sample_rate)] if name in HEADERLESS else []
    shown = ["-show_entries", "stream=codec_name,sample_rate,channels:packet=duration_time", "-of", "json"]
    probe = subprocess.run(["ffprobe", "-v", "error", *given, *shown, path], capture_output=True, check=True)
    report = json.loads(probe.stdout)
    (stream,) = report["streams"]
    assert stream["codec_name"] == CODECS[name].removesuffix("float")
    assert (int(stream["sample_rate"]), stream["channels"]) == (48000 if name == "opus" else encoder.sample_rate, 1)
    seconds = sum(float(packet["duration_time"]) for packet in report["packets"])
    assert seconds == pytest.approx(encoder.seconds, abs=0.005 if name in EXACT and name != "opus" else 0.15)


@pytest.mark.parametrize("rate", SAMPLE_RATES)
def test_lossless_formats_hold_the_pcm_stream(rate: int) -> None:
    wanted = pcm(rate)
    assert np.array_equal(wanted, np.frombuffer(pcm16(expected(rate)), "<i2"))
    for name, streaming in product(("wav", "flac", "pcm_f32", "wav_f32"), (True, False)):
        assert np.array_equal(to_int16(decode(name, file(name, rate, streaming=streaming), rate).samples), wanted)
    for data in (file("wav", rate), file("wav", rate, streaming=False), file("flac", rate, streaming=False)):
        assert np.array_equal(soundfile.read(io.BytesIO(data), dtype="int16")[0], wanted)


def test_a_whole_wav_states_its_size_and_a_streamed_one_states_none() -> None:
    whole, streamed = file("wav", streaming=False), file("wav")
    assert whole[4:8] == (len(whole) - 8).to_bytes(4, "little")
    assert whole[40:44] == (len(whole) - 44).to_bytes(4, "little")
    assert streamed[4:8] == streamed[40:44] == b"\xff\xff\xff\xff"
    assert whole[44:] == streamed[44:] == file("pcm")


@pytest.mark.parametrize("name", ("mulaw", "alaw"))
def test_telephone_bytes_are_those_of_another_coder(name: str) -> None:
    made = io.BytesIO()
    soundfile.write(made, pcm(8000), 8000, format="RAW", subtype=HEADERLESS[name][1])
    ours, theirs = (
        soundfile.read(
            io.BytesIO(data), dtype="int16", format="RAW", subtype=HEADERLESS[name][1], samplerate=8000, channels=1
        )[0].astype(int)
        for data in (file(name), made.getvalue())
    )
    samples = pcm(8000).astype(int)
    # both take a value of the law next to the sample: steps are at most a sixteenth of the value, 16 near zero
    assert (np.abs(ours - samples) <= np.abs(samples) / 16 + 16).all()
    assert np.mean(np.abs(ours - samples)) <= 1.05 * np.mean(np.abs(theirs - samples))


@pytest.mark.parametrize(
    ("name", "rate", "media_type"),
    (
        ("wav", None, "audio/wav"),
        ("pcm", None, "audio/pcm;rate=24000"),
        ("pcm", 8000, "audio/pcm;rate=8000"),
        ("flac", None, "audio/flac"),
        ("mp3", None, "audio/mpeg"),
        ("opus", None, "audio/ogg;codecs=opus"),
        ("aac", None, "audio/aac"),
        ("mulaw", None, "audio/PCMU;rate=8000"),
        ("alaw", 16000, "audio/PCMA;rate=16000"),
        ("pcm_f32", None, "audio/x-pcm-f32;rate=24000"),
        ("wav_mulaw", None, "audio/wav"),
    ),
)
def test_media_types(name: str, rate: int | None, media_type: str) -> None:
    assert Encoder(name, RATE, rate).media_type == media_type


def test_the_default_rate_is_the_source_s_or_the_next_that_the_format_has() -> None:
    assert [Encoder("wav", rate).sample_rate for rate in (24000, 12000, 96000)] == [24000, 16000, 48000]
    assert [Encoder("opus", rate).sample_rate for rate in (22050, 44100)] == [24000, 48000]
    assert Encoder("mulaw", 24000).sample_rate == Encoder("wav_alaw", 24000).sample_rate == 8000


@pytest.mark.parametrize("name", ("mp3", "opus", "aac"))
def test_a_bit_rate_is_that_of_the_file(name: str) -> None:
    for rate in FORMATS[name].sample_rates[-2:]:
        for bits in (64_000, 128_000):
            data = b"".join(encode(Encoder(name, RATE, rate, streaming=False, bit_rate=bits), SOUND))
            assert len(data) * 8 * RATE / len(SOUND) == pytest.approx(bits, rel=0.3)
