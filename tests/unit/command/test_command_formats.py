"""`voice-clone speak -o FILE` in other formats than WAV: read again by FFmpeg; and without PyAV."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_command import audio_file, cli
from voice_clone_command.audio_file import SUFFIXES, AudioFile

from tests.support.doubles.command_line import Run
from tests.support.doubles.triton_double import RATE, Server, speech

CODECS = {
    ".wav": "pcm_s16le",
    ".flac": "flac",
    ".mp3": "mp3float",
    ".opus": "opus",
    ".ogg": "opus",
    ".m4a": "aac",
    ".aac": "aac",
    ".webm": "opus",
}


def read(path: Path) -> tuple[str, int, NDArray[np.float32]]:
    """Codec, sample rate and samples."""
    with av.open(str(path)) as file:
        [stream] = file.streams.audio
        resampler = av.AudioResampler("flt", "mono", stream.rate)
        frames = [part for frame in file.decode(stream) for part in resampler.resample(frame)]
        assert stream.channels == 1
        return stream.codec_context.name, stream.rate, np.concatenate([part.to_ndarray()[0] for part in frames])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_each_suffix_is_its_format(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    triton.play = lambda context: iter(speech(10))
    out = tmp_path / f"out{suffix.upper() if suffix == '.mp3' else suffix}"
    assert run("speak", "Hi.", "--voice", "Ada", "-o", out) == 0
    assert capsys.readouterr() == (f"{out}\t0.80 s\t10 frames\n", "")
    codec, rate, samples = read(out)
    assert codec == CODECS[suffix] and rate in (RATE, 48000)
    assert abs(len(samples) / rate - 10 * 1920 / RATE) < 0.1  # the encoders' delays


@pytest.mark.parametrize(("suffix", "rate"), [(".opus", 44100), (".mp3", 96000), (".m4a", 44100), (".flac", 44100)])
def test_the_sound_is_the_same_at_any_rate(tmp_path: Path, suffix: str, rate: int) -> None:
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate, dtype=np.float32)
    path = tmp_path / f"out{suffix}"
    with path.open("wb") as file, AudioFile(file, rate) as written:
        for part in np.array_split(tone, 7):
            written.write(part)
        written.write(np.zeros(0, np.float32))
    _, heard, samples = read(path)
    middle = samples[heard // 4 : 3 * heard // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert abs(int(spectrum.argmax()) * heard / len(middle) - 440) <= 2.0
    assert abs(float(np.sqrt(np.mean(middle**2))) - 0.5 / np.sqrt(2)) < 0.02


def test_a_speech_that_breaks_off_leaves_a_valid_file(triton: Server, run: Run, tmp_path: Path) -> None:
    triton.play = lambda context: iter(speech(10)[:5])
    assert run("speak", "Hi.", "--voice", "Ada", "-o", tmp_path / "out.m4a") == 1
    codec, rate, samples = read(tmp_path / "out.m4a")
    assert codec == "aac" and len(samples) / rate > 4 * 1920 / RATE


def test_a_format_that_cannot_be_written(
    triton: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before the server is asked."""
    speak = ["--url", triton.url, "speak", "Hi.", "--voice", "Ada", "-o"]
    with pytest.raises(SystemExit):
        cli.main([*speak, str(tmp_path / "out.wma")])
    assert ".wma cannot be written; give a name that ends in .wav, .flac, .mp3, .opus" in capsys.readouterr().err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        cli.main([*speak, str(tmp_path / "out.mp3")])
    assert f".mp3 needs a further package: {audio_file.MISSING}; .wav needs none" in capsys.readouterr().err
    assert not triton.calls and not list(tmp_path.iterdir())
    assert run("speak", "Hi.", "--voice", "Ada", "-o", tmp_path / "out") == 0
    assert (tmp_path / "out").read_bytes().startswith(b"RIFF")
