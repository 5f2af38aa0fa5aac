"""The audio that the gateway sends: format, rate, length, content, chunking, speed, errors, threads, memory."""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from voice_clone_client import pcm16
from voice_clone_client.errors import Internal, InvalidArgument
from voice_clone_gateway.audio import FORMATS, SAMPLE_RATES, Encoder
from voice_clone_gateway.audio.resampler import Resampler
from voice_clone_gateway.audio.tempo import Tempo

Samples = NDArray[np.float32]

RATE = 24000
CHUNK = 1920  # 80 ms, what the model gives at a time
HEADERLESS = {"pcm": ("s16le", "PCM_16"), "mulaw": ("mulaw", "ULAW"), "alaw": ("alaw", "ALAW")}  # FFmpeg, libsndfile
EXACT = ("wav", "pcm", "flac", "opus", "mulaw", "alaw")  # no sample more or less, streamed or not
CODECS = {
    "wav": "pcm_s16le",
    "pcm": "pcm_s16le",
    "flac": "flac",
    "mp3": "mp3float",
    "opus": "opus",
    "aac": "aac",
    "mulaw": "pcm_mulaw",
    "alaw": "pcm_alaw",
}
SNDFILE = {
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "opus": ("OGG", "OPUS"),
    **{name: ("RAW", subtype) for name, (_, subtype) in HEADERLESS.items()},
}
EVERY = [
    pytest.param(name, rate, streaming, id=f"{name}-{rate}-{'streamed' if streaming else 'whole'}")
    for name, entry in FORMATS.items()
    for rate, streaming in product(entry.sample_rates, (True, False))
]


def tones(samples: int, rate: int = RATE) -> Samples:
    """A sound within the band of a telephone that never repeats: two sweeps and some noise."""
    t = np.arange(samples) / rate
    noise = soxr.resample(np.random.default_rng(5).standard_normal(samples // 4 + 8), 1, 4)[:samples]
    sound = 0.3 * np.sin(2 * np.pi * (250 + 400 * t) * t) + 0.2 * np.sin(2 * np.pi * (1500 - 300 * t) * t)
    return (sound + 0.02 * noise).astype(np.float32)


SOUND = tones(RATE + 17)


def encode(encoder: Encoder, samples: Samples, sizes: Sequence[int] = (CHUNK,)) -> list[bytes]:
    """The bytes after each chunk, and the last; the sizes of the chunks are taken in turn."""
    out, start, turn = [], 0, 0
    while start < len(samples):
        size = sizes[turn % len(sizes)]
        out.append(encoder.encode(samples[start : start + size]))
        start, turn = start + size, turn + 1
    return [*out, encoder.finish()]


@cache
def file(name: str, rate: int | None = None, speed: float = 1.0, streaming: bool = True) -> bytes:
    return b"".join(encode(Encoder(name, RATE, rate, speed, streaming=streaming), SOUND))


@dataclass
class Decoded:
    container: str
    codec: str
    rate: int
    channels: int
    samples: Samples


def decode(name: str, data: bytes, rate: int) -> Decoded:
    """What FFmpeg makes of a file; only of a headerless one it is told format and rate."""
    told = {"format": HEADERLESS[name][0], "options": {"sample_rate": str(rate)}} if name in HEADERLESS else {}
    with av.open(io.BytesIO(data), **told) as container:
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format="fltp")
        frames = [made for frame in container.decode(stream) for made in resampler.resample(frame)]
        samples = np.concatenate([frame.to_ndarray()[0] for frame in frames]) if frames else np.zeros(0, np.float32)
        return Decoded(container.format.name, stream.codec_context.codec.name, stream.rate, stream.channels, samples)


def to_int16(samples: Samples) -> NDArray[np.int16]:
    """16-bit samples as FFmpeg's own conversion to float left them, back again."""
    return np.rint(samples * 32768).astype(np.int16)


@cache
def expected(rate: int) -> Samples:
    return soxr.resample(SOUND, RATE, rate, quality="HQ") if rate != RATE else SOUND


@cache
def pcm(rate: int, speed: float = 1.0) -> NDArray[np.int16]:
    return np.frombuffer(file("pcm", rate, speed), "<i2")


def lag(decoded: Samples, original: Samples) -> int:
    """By how many samples the first is later than the second."""
    size = 1 << (len(decoded) + len(original)).bit_length()
    correlation = np.fft.irfft(np.fft.rfft(decoded, size) * np.conj(np.fft.rfft(original, size)))
    best = int(np.argmax(correlation))
    return best if best < size // 2 else best - size


# ---------------------------------------------------------------------------------------------- what the files are


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
    told = {"samplerate": rate, "channels": 1, "format": "RAW", "endian": "LITTLE"} if name in HEADERLESS else {}
    if name in HEADERLESS:
        told["subtype"] = HEADERLESS[name][1]
    with soundfile.SoundFile(io.BytesIO(data), **told) as sound:
        assert (sound.format, sound.subtype) == SNDFILE[name]
        assert (sound.samplerate, sound.channels) == (rate, 1)
        if name == "flac" and streaming:
            assert sound.frames == 2**63 - 1  # its word for unknown
            return
        frames = len(sound.read())
    slack = 0 if name in EXACT else (100 if not streaming else 1105 + 2 * 1152)
    assert 0 <= frames - len(expected(rate)) <= slack


@pytest.mark.skipif(shutil.which("ffprobe") is None, reason="ffprobe is not installed; PyAV checks the same")
@pytest.mark.parametrize("streaming", (True, False))
@pytest.mark.parametrize("name", FORMATS)
def test_ffprobe_agrees(name: str, streaming: bool, tmp_path: Path) -> None:
    encoder = Encoder(name, RATE, streaming=streaming)
    path = tmp_path / f"speech.{encoder.format.extension}"
    path.write_bytes(b"".join(encode(encoder, SOUND)))
    told = ["-f", HEADERLESS[name][0], "-ar", str(encoder.sample_rate)] if name in HEADERLESS else []
    shown = ["-show_entries", "stream=codec_name,sample_rate,channels:packet=duration_time", "-of", "json"]
    probe = subprocess.run(["ffprobe", "-v", "error", *told, *shown, path], capture_output=True, check=True)
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
    for name, streaming in product(("wav", "flac"), (True, False)):
        assert np.array_equal(to_int16(decode(name, file(name, rate, streaming=streaming), rate).samples), wanted)
    for data in (file("wav", rate), file("wav", rate, streaming=False), file("flac", rate, streaming=False)):
        assert np.array_equal(soundfile.read(io.BytesIO(data), dtype="int16")[0], wanted)


def test_a_whole_wav_tells_its_true_size_and_a_streamed_one_that_it_is_unknown() -> None:
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
        ("alaw", None, "audio/PCMA;rate=8000"),
    ),
)
def test_media_types(name: str, rate: int | None, media_type: str) -> None:
    assert Encoder(name, RATE, rate).media_type == media_type


def test_without_a_wish_the_rate_is_the_source_s_or_the_next_that_the_format_has() -> None:
    assert [Encoder("wav", rate).sample_rate for rate in (24000, 12000, 96000)] == [24000, 16000, 48000]
    assert [Encoder("opus", rate).sample_rate for rate in (22050, 44100)] == [24000, 48000]
    assert Encoder("mulaw", 24000).sample_rate == 8000


# --------------------------------------------------------------------------------------------------- while it streams


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
@settings(max_examples=8, deadline=None)
def test_the_bytes_do_not_depend_on_the_chunks(name: str, sizes: list[int], rate: int, speed: float) -> None:
    rate = rate if rate in FORMATS[name].sample_rates else FORMATS[name].sample_rates[-1]
    sound = SOUND[: RATE // 2]
    streamed = encode(Encoder(name, RATE, rate, speed), sound, sizes)
    assert b"".join(streamed) == b"".join(encode(Encoder(name, RATE, rate, speed), sound, [len(sound)]))


@given(count=st.integers(0, 3000), rate_in=st.sampled_from(SAMPLE_RATES), rate_out=st.sampled_from(SAMPLE_RATES))
@settings(max_examples=60, deadline=None)
def test_the_resampler_s_length_is_the_ratio_s(count: int, rate_in: int, rate_out: int) -> None:
    encoder = Encoder("pcm", rate_in, rate_out)
    data = b"".join(encode(encoder, SOUND[:count], [777]))
    assert len(data) == 2 * encoder.samples
    assert abs(encoder.samples - count * rate_out / rate_in) <= 0.5


# ----------------------------------------------------------------------------------------------------------- the speed


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


@given(count=st.integers(0, 4000), speed=st.floats(0.25, 4.0), size=st.integers(1, 4000))
@settings(max_examples=60, deadline=None)
def test_the_length_is_exact_at_any_speed(count: int, speed: float, size: int) -> None:
    tempo = Tempo(RATE, speed)
    parts = [tempo.push(SOUND[i : min(count, i + size)], final=False) for i in range(0, count, size)]
    parts.append(tempo.push(np.zeros(0, np.float32), final=True))
    assert sum(map(len, parts)) == round(count / speed)


def test_speed_and_rate_together() -> None:
    encoder = Encoder("flac", RATE, 8000, 1.5)
    got = decode("flac", b"".join(encode(encoder, SOUND)), 8000)
    assert len(got.samples) == encoder.samples == round(round(len(SOUND) / 1.5) / 3)
    assert encoder.seconds == pytest.approx(len(SOUND) / RATE / 1.5, abs=1e-3)
    assert np.array_equal(to_int16(got.samples), pcm(8000, 1.5))


# ------------------------------------------------------------------------------------------------------------ the edges


@pytest.mark.parametrize(
    ("arguments", "words"),
    (
        (("ogg", RATE), ("wav, pcm, flac, mp3, opus, aac, mulaw, alaw", "'ogg'")),
        (("MP3", RATE), ("mp3", "'MP3'")),
        (("wav", RATE, 11025), ("8000, 16000, 22050, 24000, 44100, 48000", "11025")),
        (("opus", RATE, 22050), ("opus", "8000, 16000, 24000, 48000", "22050")),
        (("opus", RATE, 44100), ("opus", "44100")),
        (("mulaw", RATE, 16000), ("mulaw", "8000", "16000")),
        (("alaw", RATE, 24000), ("alaw", "8000", "24000")),
        (("wav", RATE, 0), ("8000", "not 0")),
        (("wav", RATE, None, 0.2), ("0.25 to 4", "0.2")),
        (("wav", RATE, None, 4.1), ("0.25 to 4", "4.1")),
        (("wav", RATE, None, float("nan")), ("0.25 to 4", "nan")),
        (("wav", RATE, None, -1.0), ("0.25 to 4", "-1")),
    ),
)
def test_what_cannot_be_done_is_refused_with_what_can(arguments: tuple[str, int], words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Encoder(*arguments)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("value", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("speed", (1.0, 2.0))
def test_samples_that_are_no_numbers_are_an_error(value: float, speed: float) -> None:
    encoder = Encoder("wav", RATE, 8000, speed)
    encoder.encode(SOUND[:CHUNK])
    with pytest.raises(Internal, match="no numbers"):
        encoder.encode([0.0, value, 0.0])


def test_what_is_too_loud_is_clipped() -> None:
    loud = np.array([2.0, -2.0, 1.0, -1.0, 0.5, 1e30, -1e30], np.float32)
    wanted = [32767, -32767, 32767, -32767, 16384, 32767, -32767]
    for name in ("pcm", "flac"):
        data = b"".join(encode(Encoder(name, RATE, streaming=False), loud))
        assert to_int16(decode(name, data, RATE).samples).tolist() == wanted


@pytest.mark.parametrize("speed", (0.25, 1.0, 4.0))
@pytest.mark.parametrize("streaming", (True, False))
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", (1, 2, 50))
def test_a_few_samples_make_a_file(name: str, streaming: bool, speed: float, count: int) -> None:
    encoder = Encoder(name, RATE, speed=speed, streaming=streaming)
    data = b"".join(encode(encoder, 0.1 + np.zeros(count, np.float32), [1]))
    samples = round(round(count / speed) * encoder.sample_rate / RATE)
    assert abs(encoder.samples - samples) <= 1
    if encoder.samples:
        got = decode(name, data, encoder.sample_rate)
        wanted = encoder.samples * got.rate // encoder.sample_rate
        assert len(got.samples) == wanted if name in EXACT else len(got.samples) >= wanted


@pytest.mark.parametrize("streaming", (True, False))
def test_no_samples_make_no_more_than_a_header(streaming: bool) -> None:
    sizes = {name: len(Encoder(name, RATE, streaming=streaming).finish()) for name in FORMATS}
    assert sizes["wav"] == 44
    assert sizes["pcm"] == sizes["mulaw"] == sizes["alaw"] == sizes["aac"] == 0
    assert all(size < 500 for size in sizes.values())


def test_lists_and_doubles_are_samples_too() -> None:
    encoder = Encoder("pcm", RATE)
    assert encoder.encode([0.5, -0.5]) + encoder.encode(np.array([0.5, -0.5])) == pcm16([0.5, -0.5, 0.5, -0.5])
    assert encoder.encode([]) == b""


@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), max_size=300),
    name=st.sampled_from(sorted(FORMATS)),
    speed=st.sampled_from((1.0, 0.25, 4.0)),
)
@settings(max_examples=60, deadline=None)
def test_any_finite_sound_can_be_encoded(values: list[float], name: str, speed: float) -> None:
    encoder = Encoder(name, RATE, 8000, speed)
    encode(encoder, np.array(values, np.float32), [100])
    assert encoder.samples == pytest.approx(len(values) / 3 / speed, abs=1)


# --------------------------------------------------------------------------------------------------- many side by side


def test_encoders_in_many_threads_do_not_mix() -> None:
    jobs = [(name, speed, gain) for name in FORMATS for speed in (1.0, 1.5) for gain in (0.2, 0.9)]

    def work(job: tuple[str, float, float]) -> bytes:
        name, speed, gain = job
        return b"".join(encode(Encoder(name, RATE, 8000, speed), gain * SOUND[: RATE // 2]))

    alone = [work(job) for job in jobs]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, 3 * jobs)) == 3 * alone


def test_an_encoder_may_pass_from_thread_to_thread() -> None:
    encoder = Encoder("mp3", RATE, 44100, 1.25)
    out: list[bytes] = []
    for start in range(0, len(SOUND), CHUNK):
        thread = threading.Thread(target=lambda at=start: out.append(encoder.encode(SOUND[at : at + CHUNK])))
        thread.start()
        thread.join()
    assert b"".join([*out, encoder.finish()]) == file("mp3", 44100, 1.25)


def memory() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("name", FORMATS)
def test_encoders_dropped_in_the_middle_leave_nothing(name: str) -> None:
    def drop(count: int) -> None:
        for _ in range(count):
            Encoder(name, RATE, 8000, 1.5).encode(SOUND[:CHUNK])

    gc.collect()
    gc.disable()  # what only the collector would find piles up meanwhile
    try:
        grown = []
        for _ in range(5):  # what is left behind shows in each round, what is allocated once in one or two
            before = memory()
            drop(50)
            grown.append(memory() - before)
        assert sorted(grown)[2] < 50 * 20_000  # each takes 400 kB and more
    finally:
        gc.enable()


@pytest.mark.parametrize("name", FORMATS)
def test_open_encoders_take_no_threads(name: str) -> None:
    before = len(os.listdir("/proc/self/task"))
    encoders = [Encoder(name, RATE, 8000, 1.5) for _ in range(20)]
    for encoder in encoders:
        encoder.encode(SOUND)
    assert len(os.listdir("/proc/self/task")) <= before
