"""The shipped clip of speech as phones and browsers record it, and broken recordings.

PyAV's FFmpeg encodes AAC, ALAC, Opus and AMR-NB. It has no encoder of AMR-WB, so no test reads a file of that.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

CLIP = Path(__file__).resolve().parents[3] / "tools" / "data" / "reference.wav"
SAMPLES, RATE = soundfile.read(CLIP, dtype="float32")

FORMATS = {  # file name: container, encoder, sample rate, channels
    "voice.m4a": ("ipod", "aac", 44_100, 1),
    "stereo.m4a": ("ipod", "aac", 48_000, 2),
    "lossless.m4a": ("ipod", "alac", 44_100, 1),
    "video.mp4": ("mp4", "aac", 48_000, 2),
    "recorder.mov": ("mov", "aac", 48_000, 1),
    "browser.webm": ("webm", "libopus", 48_000, 1),
    "browser.mkv": ("matroska", "libopus", 48_000, 1),
    "call.amr": ("amr", "libopencore_amrnb", 8_000, 1),
    "call.3gp": ("3gp", "libopencore_amrnb", 8_000, 1),
    "raw.aac": ("adts", "aac", 44_100, 1),
    "recorder.caf": ("caf", "pcm_s16le", 44_100, 1),
    "recorder.aiff": ("aiff", "pcm_s16be", 44_100, 1),
}


def wav(samples: NDArray[Any]) -> bytes:
    """A WAV file of 16-bit samples at `RATE`."""
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


PADDED = wav(np.concatenate([np.zeros(2 * RATE), SAMPLES, np.zeros(3 * RATE)]))


def made(name: str, samples: NDArray[np.float32] = SAMPLES, sound: bool = True, picture: bool = False) -> bytes:
    """A file of that name's format: the samples, at `RATE`, as its audio track."""
    container, encoder, rate, channels = FORMATS[name]
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        if picture:
            video: Any = file.add_stream("vp8" if container == "webm" else "mpeg4", rate=10)
            video.width = video.height = 64
            video.pix_fmt = "yuv420p"
        if sound:
            layout = "stereo" if channels == 2 else "mono"
            audio: Any = file.add_stream(encoder, rate=rate, layout=layout)
            if encoder == "libopencore_amrnb":
                audio.bit_rate = 12_200
        if picture:
            for index in range(10):
                image = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 20 * index, np.uint8), format="rgb24")
                file.mux(video.encode(image))
            file.mux(video.encode(None))
        if sound:
            wave = soxr.resample(samples, RATE, rate)
            planes = np.repeat(np.rint(wave * 32767).clip(-32768, 32767).astype(np.int16)[:, None], channels, axis=1)
            frame = av.AudioFrame.from_ndarray(planes.reshape(1, -1), format="s16", layout=layout)
            frame.sample_rate = rate
            file.mux(audio.encode(frame))
            file.mux(audio.encode(None))
    return out.getvalue()


@cache
def phone_clip(name: str) -> bytes:
    """The shipped clip in a file of that name."""
    return made(name)


def long_clip(name: str, seconds: float) -> bytes:
    """The shipped clip and silence behind it, which encoders are quick with."""
    samples = np.zeros(round(seconds * RATE), np.float32)
    samples[: len(SAMPLES)] = SAMPLES
    return made(name, samples)


def is_same_sound(samples: NDArray[np.float32], rate: int) -> bool:
    """Whether this is the shipped clip, but for what a codec of speech does to it and some silence at its ends."""
    ours, theirs = (soxr.resample(wave, at, 8_000) for wave, at in ((samples, rate), (SAMPLES, RATE)))
    ours, theirs = (np.abs(wave[: len(wave) // 80 * 80].reshape(-1, 80)).mean(axis=1) for wave in (ours, theirs))
    return max(_alike(ours, theirs, shift) for shift in range(8)) > 0.9


def _alike(ours: NDArray[np.float32], theirs: NDArray[np.float32], shift: int) -> float:
    """How alike two envelopes are, the first delayed by `shift` blocks of 10 ms."""
    ours = ours[shift:]
    length = min(len(ours), len(theirs))
    return float(np.corrcoef(ours[:length], theirs[:length])[0, 1]) if length > 400 else 0.0
