"""Files whose headers say something wrong: all samples that there are count, and what is missing is known."""

from __future__ import annotations

import contextlib
import io
import re
import struct
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from numpy.typing import NDArray

from tests.support.official.phone_clips import RATE, SAMPLES
from voice_clone.audio import Losses, check_audible, decode
from voice_clone.errors import InvalidArgument

WHOLE = Losses()


def encode(samples: NDArray[Any], format: str, subtype: str | None = None, rate: int = RATE, **options: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=subtype, **options)
    return file.getvalue()


def clips() -> dict[str, bytes]:
    """The shipped clip in each format."""
    return {
        "wav": encode(SAMPLES, "WAV", "PCM_16"),
        "wavex": encode(SAMPLES, "WAVEX", "PCM_24"),
        "rf64": encode(SAMPLES, "RF64", "PCM_16"),
        "flac": encode(SAMPLES, "FLAC", "PCM_16"),
        "ogg": encode(SAMPLES, "OGG", "VORBIS"),
        "opus": encode(soxr.resample(SAMPLES, RATE, 24_000), "OGG", "OPUS", 24_000),
        "mp3": encode(SAMPLES, "MP3"),
        "stereo.mp3": encode(np.stack([SAMPLES, 0.5 * SAMPLES], axis=1), "MP3"),
    }


CLIPS = clips()


@pytest.mark.parametrize("name", CLIPS)
def test_whole_files_are_read_as_libsndfile_reads_them(name: str) -> None:
    samples, rate = soundfile.read(io.BytesIO(CLIPS[name]), dtype="float32", always_2d=True)
    clip = decode(CLIPS[name])
    np.testing.assert_array_equal(clip.waveform, np.mean(samples, axis=1))
    assert (clip.sample_rate, clip.losses) == (rate, WHOLE)


# MP3


def with_frames(mp3: bytes, frames: int) -> bytes:
    """The file with another number of frames in its header."""
    at = re.search(rb"Xing|Info", mp3)
    assert at is not None
    return mp3[: at.start() + 8] + struct.pack(">I", frames) + mp3[at.start() + 12 :]


def without_header(mp3: bytes) -> bytes:
    """As recorders and streams write it: one silent frame more at the beginning, in place of the header."""
    return re.sub(rb"Xing|Info", b"Fine", mp3, count=1)


def silence_first() -> bytes:
    """Frames of few bytes first: libsndfile takes all for such, and the file for a long one."""
    return without_header(encode(np.concatenate([np.zeros(RATE), SAMPLES]), "MP3"))


def loud_first() -> bytes:
    """Frames of many bytes first: libsndfile takes the file for a short one."""
    noise = np.random.default_rng(0).normal(0.0, 0.3, RATE // 4)
    return without_header(encode(np.concatenate([noise, 0.001 * SAMPLES, np.zeros(5 * RATE)]), "MP3"))


@pytest.mark.parametrize("name", ["mp3", "stereo.mp3"])
@pytest.mark.parametrize("frames", [1, 20, 10_000, 0, 1 << 29, 0xFFFFFFFF])
def test_an_mp3_with_a_wrong_number_of_frames(name: str, frames: int) -> None:
    right, wrong = decode(CLIPS[name]), decode(with_frames(CLIPS[name], frames))
    assert 0 <= wrong.seconds - right.seconds < 0.2  # with what fills the last frames up
    np.testing.assert_array_equal(wrong.waveform[: len(right.waveform)], right.waveform)
    assert (wrong.losses.missing_seconds is not None) == (frames == 10_000)


@pytest.mark.parametrize(("make", "seconds"), [(silence_first, 6.18), (loud_first, 10.43)])
def test_an_mp3_without_a_number_of_frames(make: Any, seconds: float) -> None:
    mp3 = make()
    assert abs(soundfile.info(io.BytesIO(mp3)).duration - seconds) > 0.2  # what libsndfile believes
    clip = decode(mp3)
    assert clip.seconds == pytest.approx(seconds, abs=0.15)
    assert clip.losses == WHOLE


def test_long_mp3_files_are_refused_whatever_they_say() -> None:
    long = encode(np.tile(SAMPLES, 7), "MP3")
    for mp3, length in (
        (long, r"36\.23 s long"),
        (without_header(long), "more than 30 s long"),
        (with_frames(long, 100), "more than 30 s long"),
    ):
        with pytest.raises(InvalidArgument, match=rf"{length}; it must be 1 to 30 s"):
            decode(mp3)


@pytest.mark.parametrize(
    "tag", [b"TAG" + bytes(125), b"APETAGEX" + b"x" * 5000, b"ID3\4\0\0\0\0\x27\x10" + bytes(5008)]
)
@pytest.mark.parametrize("header", [False, True])
def test_a_tag_at_the_end_of_an_mp3_is_no_audio(tag: bytes, header: bool) -> None:
    mp3 = CLIPS["mp3"] if header else without_header(CLIPS["mp3"])
    clip, tagged = decode(mp3), decode(mp3 + tag)
    np.testing.assert_array_equal(clip.waveform, tagged.waveform)
    assert tagged.losses == WHOLE


def test_a_picture_before_an_mp3() -> None:
    picture = b"\xff\xfb\x90\x00" + bytes(32) + b"Xing\0\0\0\1\0\0\0\1" + bytes(200_000)  # with a header inside
    size = bytes(len(picture) >> shift & 0x7F for shift in (21, 14, 7, 0))
    clip = decode(b"ID3\4\0\0" + size + picture + CLIPS["mp3"])
    np.testing.assert_array_equal(clip.waveform, decode(CLIPS["mp3"]).waveform)


# WAV


@pytest.mark.parametrize("name", ["wav", "wavex"])
def test_tags_before_a_wav(name: str) -> None:
    clip = decode(2 * (b"ID3\4\0\0\0\0\0\x14" + bytes(20)) + CLIPS[name])
    np.testing.assert_array_equal(clip.waveform, decode(CLIPS[name]).waveform)
    assert clip.losses == WHOLE
    with pytest.raises(InvalidArgument, match="cannot be decoded"):
        decode(b"ID3\4\0\0" + bytes(4) + bytes(2) + CLIPS[name])  # libsndfile calls this a WAV file


def with_sizes(wav: bytes, size: int) -> bytes:
    """The file with this size in both places, as recorders leave it that cannot go back to the header."""
    at = wav.index(b"data") + 4
    word = struct.pack("<I", size)
    return wav[:4] + word + wav[8:at] + word + wav[at + 4 :]


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0x80000000, 0xFFFFFFFF - 44])
@pytest.mark.parametrize("name", ["wav", "wavex"])
def test_a_wav_file_whose_sizes_are_not_known(size: int, name: str) -> None:
    clip = decode(with_sizes(CLIPS[name], size))
    np.testing.assert_array_equal(clip.waveform, decode(CLIPS[name]).waveform)
    assert clip.losses == WHOLE


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF])
def test_an_rf64_file_whose_sizes_are_not_known(size: int) -> None:
    rf64 = bytearray(CLIPS["rf64"])
    struct.pack_into("<QQQ", rf64, rf64.index(b"ds64") + 8, size, size, size)
    clip = decode(bytes(rf64))
    np.testing.assert_array_equal(clip.waveform, decode(CLIPS["rf64"]).waveform)
    assert (clip.losses, clip.mime_type) == (WHOLE, "audio/wav")


def test_an_empty_wav_file_with_a_chunk_after_it_stays_empty() -> None:
    empty = encode(np.zeros(0), "WAV", "PCM_16")
    for tail in (b"", b"LIST" + struct.pack("<I", 20_000) + bytes(20_000)):
        with pytest.raises(InvalidArgument, match="the audio has no samples"):
            decode(empty + tail)


def test_chunks_after_the_samples_are_no_loss_and_other_bytes_are() -> None:
    chunk = b"LIST" + struct.pack("<I", 5) + b"words"  # of odd size, and its pad byte lacks
    assert decode(CLIPS["wav"] + chunk).losses == WHOLE
    clip = decode(CLIPS["wav"] + b"\1\2\3" * 1000)
    assert clip.losses == Losses(undecoded_bytes=3000)
    np.testing.assert_array_equal(clip.waveform, decode(CLIPS["wav"]).waveform)


TELEPHONE = [
    "GSM610",
    "G721_32",
    "NMS_ADPCM_16",
    "NMS_ADPCM_24",
    "NMS_ADPCM_32",
    "IMA_ADPCM",
    "MS_ADPCM",
    "ALAW",
    "ULAW",
]


@pytest.mark.parametrize("size", [None, 0, 0xFFFFFFFF])
@pytest.mark.parametrize("codec", TELEPHONE)
def test_telephone_codecs(codec: str, size: int | None) -> None:
    """libsndfile cannot seek in some of them."""
    speech = soxr.resample(SAMPLES, RATE, 8_000)
    wav = encode(speech, "WAV", codec, 8_000)
    clip = decode(wav if size is None else with_sizes(wav, size))
    assert clip.seconds == pytest.approx(len(speech) / 8_000, abs=0.07)
    assert clip.losses == WHOLE
    length = min(len(speech), len(clip.waveform))
    assert np.corrcoef(speech[:length], clip.waveform[:length])[0, 1] > 0.9


@pytest.mark.parametrize("sizes", ["right", "unknown"])
def test_an_mp3_in_a_wav_file(sizes: str) -> None:
    mp3 = without_header(CLIPS["mp3"])
    size = len(mp3) if sizes == "right" else 0
    form = struct.pack("<HHIIHHHHIHHH", 0x55, 1, RATE, 8_000, 1, 0, 12, 1, 2, 576, 1, 1393)
    wav = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", size) + mp3
    clip = decode(b"RIFF" + struct.pack("<I", len(wav) if size else 0) + wav)
    np.testing.assert_array_equal(clip.waveform, decode(mp3).waveform)
    assert clip.mime_type == "audio/wav"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0x45, r"a WAV file with the codec G\.726, which this server does not read; convert it to PCM"),
        (0x42, r"with the codec G\.723\.1"),
        (0x83, r"with the codec G\.729"),
        (0x0161, "with the codec Windows Media Audio"),
        (0x1234, "with the codec of number 0x1234"),
        (0xFFFE, r"with the codec G\.722"),  # extensible: the number stands behind
    ],
)
def test_a_codec_that_is_not_read_is_named(number: int, words: str) -> None:
    form = struct.pack("<HHIIHHHHIH", number, 1, 8_000, 4_000, 1, 4, 22, 4, 4, 0x028F) + bytes(14)
    wav = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", 20_000) + bytes(20_000)
    with pytest.raises(InvalidArgument, match=words):
        decode(b"RIFF" + struct.pack("<I", len(wav)) + wav)


# Joined files and files that are cut off


@pytest.mark.parametrize("name", ["wav", "flac", "ogg", "opus", "mp3"])
def test_joined_files_are_one(name: str) -> None:
    one, two = decode(CLIPS[name]), decode(CLIPS[name] * 2)
    assert two.seconds == pytest.approx(2 * one.seconds, abs=0.2)
    np.testing.assert_array_equal(two.waveform[: len(one.waveform)], one.waveform)
    assert np.abs(two.waveform[-len(one.waveform) :]).max() > 0.3
    assert two.losses == WHOLE
    with pytest.raises(InvalidArgument, match=r"36\.\d\d s long|more than 30 s long"):
        decode(CLIPS[name] * 7)


@pytest.mark.parametrize("name", ["wav", "flac", "ogg", "opus", "mp3", "frames"])
@pytest.mark.parametrize("other", ["16 kHz", "48 kHz", "stereo", "cut off"])
def test_joined_files_may_differ(name: str, other: str) -> None:
    format, subtype = ("OGG", "OPUS") if name == "opus" else (name.upper().replace("FRAMES", "MP3"), None)
    rate = {"16 kHz": 16_000, "48 kHz": 48_000}.get(other, 24_000 if name == "opus" else RATE)
    samples = soxr.resample(SAMPLES, RATE, rate)
    second = encode(np.stack([samples] * 2, axis=1) if other == "stereo" else samples, format, subtype, rate)
    first = {**CLIPS, "frames": without_header(CLIPS["mp3"])}[name]
    cut = 301 if other == "cut off" else 0
    clip = decode(first[: len(first) - cut] + second)
    assert clip.seconds == pytest.approx(2 * len(SAMPLES) / RATE, abs=1.2 if cut else 0.15)
    assert clip.sample_rate == decode(first).sample_rate
    assert np.abs(clip.waveform[-len(clip.waveform) // 2 :]).max() == pytest.approx(np.abs(SAMPLES).max(), rel=0.2)
    assert (clip.losses.undecoded_bytes, clip.losses.missing_seconds is None) == (0, not cut)


@pytest.mark.parametrize("between", [b"\0" * 5000, b"APETAGEX" + b"text " * 1000, b"junk " * 1000])
@pytest.mark.parametrize("name", ["wav", "flac", "ogg", "mp3"])
def test_between_joined_files_may_be_something(name: str, between: bytes) -> None:
    clip = decode(CLIPS[name] + between + CLIPS[name])
    assert clip.seconds == pytest.approx(2 * decode(CLIPS[name]).seconds, abs=0.2)
    assert clip.losses.undecoded_bytes in (0, len(between))


@pytest.mark.parametrize("name", ["wav", "flac", "ogg", "mp3"])
def test_the_limit_counts_all_joined_files(name: str) -> None:
    other = encode(soxr.resample(SAMPLES, RATE, 8_000), {"ogg": "OGG"}.get(name, name.upper()), None, 8_000)
    with pytest.raises(InvalidArgument, match=r"more than 30 s|3[0-9]\.\d\d s long"):
        decode(CLIPS[name] + other * 6)


@pytest.mark.parametrize(("channels", "rate"), [(9, RATE), (1, 7_999)])
def test_a_further_file_that_no_clip_may_be_is_left_out(channels: int, rate: int) -> None:
    other = encode(np.zeros((rate, channels)), "WAV", "PCM_16", rate)
    clip = decode(CLIPS["wav"] + other)
    assert (len(clip.waveform), clip.losses.undecoded_bytes) == (len(SAMPLES), len(other))


def test_a_flac_file_with_a_wrong_number_of_samples() -> None:
    flac, whole = CLIPS["flac"], decode(CLIPS["flac"])
    for total, missing in (
        (len(SAMPLES) // 3, None),
        (1, None),
        (RATE * 20, 20 - whole.seconds),
        (1 << 35, (1 << 35) / RATE),
    ):
        wrong = bytearray(flac)
        wrong[21:26] = ((wrong[21] & 0xF0) << 32 | total).to_bytes(5, "big")
        clip = decode(bytes(wrong))
        np.testing.assert_array_equal(clip.waveform, whole.waveform)
        assert clip.losses.missing_seconds == (missing and pytest.approx(missing, abs=6.0 if missing > 1e3 else 0.01))


@pytest.mark.parametrize("name", CLIPS)
def test_a_file_that_is_cut_off_is_known_as_such(name: str) -> None:
    whole = decode(CLIPS[name])
    knows = name in ("wav", "wavex", "rf64", "flac", "mp3", "stereo.mp3")
    for share in (0.5, 0.9):
        cut = decode(CLIPS[name][: int(share * len(CLIPS[name])) | 1])
        assert 0.3 * whole.seconds < cut.seconds < whole.seconds - 0.1
        missing = whole.seconds - cut.seconds if knows else 0.0
        assert cut.losses.missing_seconds == pytest.approx(missing, abs=0.1)
        assert np.mean(cut.waveform[:1000] == whole.waveform[:1000]) == 1.0


def test_an_mp3_without_a_header_that_is_cut_off_is_known_as_such() -> None:
    mp3 = without_header(CLIPS["mp3"])
    assert decode(mp3).losses == WHOLE
    for cut in (5, 50, 90, len(mp3) // 2):
        assert decode(mp3[:-cut]).losses.missing_seconds == 0.0


# Channels that cancel each other out


def alike(correlation: float) -> NDArray[np.float64]:
    """The negative of the clip, with so much noise of the same spectrum that the channels correlate like this."""
    shuffled = np.random.default_rng(0).permutation(len(SAMPLES) // 2205)
    noise = SAMPLES[: len(shuffled) * 2205].reshape(len(shuffled), -1)[shuffled].ravel()
    noise = np.pad(noise, (0, len(SAMPLES) - len(noise)))
    return correlation * SAMPLES + np.sqrt(1 - correlation**2) * noise


@pytest.mark.parametrize("format", ["WAV", "FLAC", "OGG", "MP3"])
@pytest.mark.parametrize("correlation", [-1.0, -0.98, -0.8])
def test_of_channels_out_of_phase_the_louder_is_taken(format: str, correlation: float) -> None:
    other = 0.6 * alike(correlation)
    for channels, taken in (([SAMPLES, other], 1), ([other, SAMPLES], 2)):
        file = encode(np.stack(channels, axis=1), format)
        clip = decode(file)
        check_audible(clip)
        assert clip.losses == Losses(channel=taken)
        samples, _ = soundfile.read(io.BytesIO(file), dtype="float32")
        np.testing.assert_array_equal(clip.waveform, samples[:, taken - 1])


@pytest.mark.parametrize(
    "common", [0.1 * np.ones(len(SAMPLES)), 0.3 * np.sin(np.arange(len(SAMPLES)) * 100 * np.pi / RATE)]
)
def test_an_offset_or_hum_in_both_channels_hides_nothing(common: NDArray[np.float64]) -> None:
    stereo = np.stack([0.5 * SAMPLES + common, common - 0.5 * SAMPLES], axis=1)
    assert decode(encode(stereo, "WAV", "FLOAT")).losses.channel in (1, 2)


@pytest.mark.parametrize(
    "others",
    [[SAMPLES], [0 * SAMPLES], [alike(0.0)], [alike(-0.3)], [0.1 * SAMPLES], [0 * SAMPLES] * 7, [-0.1 * SAMPLES]],
)
def test_of_other_channels_the_mean_is_taken(others: list[NDArray[np.float64]]) -> None:
    file = encode(np.stack([0.5 * SAMPLES, *others], axis=1), "WAV", "FLOAT")
    samples, _ = soundfile.read(io.BytesIO(file), dtype="float32")
    clip = decode(file)
    assert clip.losses == WHOLE
    np.testing.assert_array_equal(clip.waveform, np.mean(samples, axis=1))


def test_three_channels_that_cancel_each_other_out() -> None:
    file = encode(np.stack([0.4 * SAMPLES, 0.4 * SAMPLES, -0.8 * SAMPLES], axis=1), "WAV", "FLOAT")
    assert decode(file).losses.channel == 3


# Damage


TELEPHONE_CLIPS = {codec: encode(soxr.resample(SAMPLES, RATE, 8_000), "WAV", codec, 8_000) for codec in TELEPHONE}
JOINED = {f"joined {name}": CLIPS[name] * 2 for name in ("wav", "flac", "ogg", "mp3")}
DAMAGED = {
    **CLIPS,
    **TELEPHONE_CLIPS,
    **JOINED,
    "frames": without_header(CLIPS["mp3"]),
    "sizes": with_sizes(CLIPS["wav"], 0),
}


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """The file with wrong bytes, cut off, without a piece, or with a foreign piece."""
    kind, (first, second) = rng.integers(5), sorted(rng.integers(1, len(data), 2))
    if kind < 2:
        torn = bytearray(data)
        for at in rng.integers(0, len(data) if kind else 200, rng.integers(1, 9)):
            torn[at] = rng.integers(256)
        return bytes(torn)
    return (data[:first], data[:first] + data[second:], data[:first] + rng.bytes(999) + data[first:])[kind - 2]


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_gives_a_clip_or_an_error_of_ours(name: str) -> None:
    rng = np.random.default_rng(len(name))
    for _ in range(15):
        try:
            clip = decode(damaged(DAMAGED[name], rng))
        except InvalidArgument:
            continue
        assert np.isfinite(clip.waveform).all() and 1.0 <= clip.seconds <= 30.0


HEAD = CLIPS["wav"][:36]
CHUNK, PAGE = b"abcd" + bytes(4), struct.pack("<4sBBqIIIB", b"OggS", 0, 0, 0, 1, 0, 0, 0)


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (HEAD, CHUNK),
        (HEAD + b"data" + bytes(4), CHUNK),
        (CLIPS["wav"], CHUNK),
        (CLIPS["wav"], encode(SAMPLES[:1], "WAV", "PCM_16")),
        (CLIPS["ogg"], PAGE),
        (CLIPS["ogg"], PAGE[:5] + b"\2" + PAGE[6:] + PAGE),
        (CLIPS["flac"], b"fLaC\0\0\0\x22" + bytes(40)),
        (CLIPS["mp3"], b"ID3\4\0\0\0\0\0\0"),
    ],
)
def test_a_million_small_pieces_are_not_looked_at_one_by_one(
    start: bytes, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = 0
    real = soundfile.SoundFile

    def counted(*arguments: Any) -> Any:
        nonlocal opened
        opened += 1
        return real(*arguments)

    monkeypatch.setattr(soundfile, "SoundFile", counted)
    with contextlib.suppress(InvalidArgument):
        decode(start + piece * ((10 << 20) // len(piece) - len(start)))
    assert opened < 2000
