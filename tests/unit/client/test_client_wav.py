"""WAV files and pipes."""

from __future__ import annotations

import io
import os
import struct
import threading
import wave
from pathlib import Path

import numpy as np
import pytest
from voice_clone_client import WavWriter, pcm16

SAMPLES = np.sin(np.arange(5000) / 7).astype(np.float32)


def read(data: bytes) -> tuple[int, bytes]:
    """Rate and PCM of a WAV; checks that its sizes are exactly right."""
    assert struct.unpack_from("<I", data, 4) == (len(data) - 8,)
    assert struct.unpack_from("<I", data, 40) == (len(data) - 44,)
    with wave.open(io.BytesIO(data)) as wav:
        assert (wav.getnchannels(), wav.getsampwidth()) == (1, 2)
        return wav.getframerate(), wav.readframes(wav.getnframes())


class Pipe(io.BytesIO):
    """A file that cannot seek."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: object) -> int:
        raise io.UnsupportedOperation("seek")

    tell = seek


@pytest.mark.parametrize(
    ("sample", "value"),
    [
        (0.0, 0),
        (1.0, 32767),
        (-1.0, -32767),
        (1.5, 32767),
        (-9.0, -32767),
        (0.5, 16384),
        (1.4 / 32767, 1),
        (1.6 / 32767, 2),
    ],
)
def test_pcm16_values(sample: float, value: int) -> None:
    assert pcm16([sample]) == struct.pack("<h", value)


def test_pcm16_keeps_the_signal() -> None:
    back = np.frombuffer(pcm16(SAMPLES), "<i2") / 32767
    assert np.abs(back - SAMPLES).max() <= 0.5 / 32767 + 1e-7


def test_file_is_valid_after_every_write(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    with path.open("wb") as file, WavWriter(file, 24000) as wav:
        assert read(path.read_bytes()) == (24000, b"")
        for end in (1, 100, 100, 5000):  # the third write is empty
            start = round(wav.seconds * 24000)
            wav.write(SAMPLES[start:end])
            assert read(path.read_bytes()) == (24000, pcm16(SAMPLES[:end]))
    assert wav.seconds == 5000 / 24000


def test_wav_begins_where_the_file_stands() -> None:
    file = io.BytesIO()
    file.write(b"before")
    with WavWriter(file, 8000) as wav:
        wav.write(SAMPLES)
    assert file.getvalue()[:6] == b"before"
    assert read(file.getvalue()[6:]) == (8000, pcm16(SAMPLES))


def test_pipe_has_unknown_sizes() -> None:
    pipe = Pipe()
    with WavWriter(pipe, 24000) as wav:
        wav.write(SAMPLES[:100])
        wav.write(SAMPLES[100:])
    data = pipe.getvalue()
    assert struct.unpack_from("<I", data, 4) == struct.unpack_from("<I", data, 40) == (0xFFFFFFFF,)
    assert data[44:] == pcm16(SAMPLES)
    with wave.open(io.BytesIO(data)) as wav_reader:
        assert (wav_reader.getframerate(), wav_reader.getnchannels(), wav_reader.getsampwidth()) == (24000, 1, 2)


def test_both_kinds_of_header_read_in_libsndfile(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    pipe = Pipe()
    with (
        (tmp_path / "file.wav").open("wb") as file,
        WavWriter(file, 24000) as whole,
        WavWriter(pipe, 24000) as streamed,
    ):
        whole.write(SAMPLES)
        streamed.write(SAMPLES)
    (tmp_path / "pipe.wav").write_bytes(pipe.getvalue())
    for name in ("file.wav", "pipe.wav"):
        pcm, rate = soundfile.read(tmp_path / name, dtype="int16")
        assert (rate, pcm.tobytes()) == (24000, pcm16(SAMPLES))


@pytest.mark.parametrize("comment", ["odd", "even", ""])
def test_a_comment(comment: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    file, pipe = io.BytesIO(), Pipe()
    with WavWriter(file, 24000, comment) as whole, WavWriter(pipe, 24000, comment) as streamed:
        for end in (1, 100, 5000):
            start = round(whole.seconds * 24000)
            whole.write(SAMPLES[start:end])
            streamed.write(SAMPLES[start:end])
            with wave.open(io.BytesIO(file.getvalue())) as reader:
                assert (reader.getframerate(), reader.readframes(end)) == (24000, pcm16(SAMPLES[:end]))
    for written in (file.getvalue(), pipe.getvalue()):
        with soundfile.SoundFile(io.BytesIO(written)) as sound:
            assert sound.comment == comment and sound.read(dtype="int16").tobytes() == pcm16(SAMPLES[:5000])
    assert struct.unpack_from("<I", file.getvalue(), 4) == (len(file.getvalue()) - 8,)
    assert len(file.getvalue()) % 2 == 0


class Torn(io.BytesIO):
    """Ctrl-C comes right after the third write (header, header, samples) is through."""

    writes = 0

    def write(self, data: object) -> int:
        written = super().write(data)  # type: ignore[arg-type]
        self.writes += 1
        if self.writes == 4:
            raise KeyboardInterrupt
        return written


def test_interrupted_write_leaves_a_valid_file() -> None:
    file = Torn()
    with pytest.raises(KeyboardInterrupt), WavWriter(file, 24000) as wav:  # write 1: header
        wav.write(SAMPLES[:100])  # writes 2, 3: samples, header
        wav.write(SAMPLES[100:])  # write 4: torn
    assert read(file.getvalue()) == (24000, pcm16(SAMPLES[:100]))


def test_size_beyond_4_gib_becomes_unknown() -> None:
    class Huge(io.BytesIO):
        header = b""

        def write(self, data: object) -> int:
            assert isinstance(data, bytes)
            if len(data) == 44:
                self.header = data
            return len(data)

    file = Huge()
    wav = WavWriter(file, 24000)
    wav._bytes = (1 << 32) - 10  # as after 25 hours
    wav.write(SAMPLES[:100])
    assert struct.unpack_from("<I", file.header, 4) == struct.unpack_from("<I", file.header, 40) == (0xFFFFFFFF,)


def test_real_pipe(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
    reader.start()
    with fifo.open("wb") as file, WavWriter(file, 24000) as wav:
        wav.write(SAMPLES)
    reader.join(10)
    assert received[0][44:] == pcm16(SAMPLES)
