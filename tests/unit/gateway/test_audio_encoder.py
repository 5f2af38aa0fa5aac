"""The gateway's encoder with bad arguments, odd samples and many encoders at once; its threads and memory."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from voice_clone_client import pcm16
from voice_clone_client.errors import Internal, InvalidArgument
from voice_clone_gateway.audio import FORMATS, Encoder

from tests.support.official.encoded_sound import CHUNK, EXACT, RATE, SOUND, WAVS, decode, encode, file, to_int16

pytestmark = pytest.mark.thorough

# ------------------------------------------------------------------------------------------------------------ the edges


@pytest.mark.parametrize(
    ("arguments", "words"),
    (
        (("ogg", RATE), ("wav, pcm, flac, mp3, opus, aac, mulaw, alaw, pcm_f32", "'ogg'")),
        (("MP3", RATE), ("mp3", "'MP3'")),
        (("wav", RATE, 11025), ("8000, 16000, 22050, 24000, 32000, 44100, 48000", "11025")),
        (("opus", RATE, 22050), ("opus", "8000, 16000, 24000, 48000", "22050")),
        (("opus", RATE, 44100), ("opus", "44100")),
        (("wav", RATE, 0), ("8000", "not 0")),
        (("wav", RATE, None, 0.2), ("0.25 to 4", "0.2")),
        (("wav", RATE, None, 4.1), ("0.25 to 4", "4.1")),
        (("wav", RATE, None, float("nan")), ("0.25 to 4", "nan")),
        (("wav", RATE, None, -1.0), ("0.25 to 4", "-1")),
    ),
)
def test_an_unsupported_format_is_refused_with_the_supported_ones(
    arguments: tuple[str, int], words: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Encoder(*arguments)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("value", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("speed", (1.0, 2.0))
def test_samples_that_are_no_numbers_are_an_error(value: float, speed: float) -> None:
    encoder = Encoder("wav", RATE, 8000, speed)
    encoder.encode(SOUND[:CHUNK])
    with pytest.raises(Internal, match="infinite or NaN"):
        encoder.encode([0.0, value, 0.0])


def test_samples_that_are_too_loud_are_clipped() -> None:
    loud = np.array([2.0, -2.0, 1.0, -1.0, 0.5, 1e30, -1e30], np.float32)
    wanted = [32767, -32767, 32767, -32767, 16384, 32767, -32767]
    for name in ("pcm", "flac"):
        data = b"".join(encode(Encoder(name, RATE, streaming=False), loud))
        assert to_int16(decode(name, data, RATE).samples).tolist() == wanted


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_on_the_disk_is_the_one_that_is_returned(name: str, tmp_path: Path) -> None:
    path = tmp_path / "speech"
    returned = b"".join(encode(Encoder(name, RATE, streaming=False, comment="a comment"), SOUND))
    encoder = Encoder(name, RATE, streaming=False, comment="a comment", path=path)
    assert b"".join(encode(encoder, SOUND)) == b"" and encoder.size == 0
    assert path.read_bytes() == returned


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
@settings(max_examples=60)
def test_any_finite_sound_can_be_encoded(values: list[float], name: str, speed: float) -> None:
    encoder = Encoder(name, RATE, 8000, speed)
    encode(encoder, np.array(values, np.float32), [100])
    assert encoder.samples == pytest.approx(len(values) / 3 / speed, abs=1)


# ---------------------------------------------------------------------------------------------------- many side by side


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


@pytest.mark.parametrize("speed", (1.0, 1.5))
@pytest.mark.parametrize("name", FORMATS)
def test_aside_of_the_event_loop_the_bytes_are_the_same(name: str, speed: float) -> None:
    """What takes milliseconds leaves the loop's thread; what takes microseconds does not."""

    threads = set()

    class Watched(Encoder):
        def encode(self, samples: ArrayLike) -> bytes:
            threads.add(threading.current_thread())
            return super().encode(samples)

    async def speak() -> bytes:
        encoder = Watched(name, RATE, None, speed)
        parts = [await encoder.encode_aside(SOUND[at : at + CHUNK]) for at in range(0, len(SOUND), CHUNK)]
        return b"".join([*parts, await encoder.finish_aside()])

    assert asyncio.run(speak()) == file(name, None, speed)
    stays = speed == 1.0 and name in ("pcm", "wav", "mulaw", "alaw", "pcm_f32", *WAVS)
    assert threads == {threading.current_thread()} if stays else threading.current_thread() not in threads


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
