"""A sound, what the gateway's encoders make of it, and what FFmpeg makes of that."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import av
import numpy as np
import soxr
from numpy.typing import NDArray
from voice_clone_gateway.audio import Encoder

Samples = NDArray[np.float32]
RATE = 24000
CHUNK = 1920  # 80 ms, what the model gives at a time
HEADERLESS = {  # FFmpeg, libsndfile
    "pcm": ("s16le", "PCM_16"),
    "mulaw": ("mulaw", "ULAW"),
    "alaw": ("alaw", "ALAW"),
    "pcm_f32": ("f32le", "FLOAT"),
}
WAVS = {"wav_mulaw": "ULAW", "wav_alaw": "ALAW", "wav_f32": "FLOAT"}
EXACT = ("wav", "flac", "opus", *HEADERLESS, *WAVS)  # no sample more or less, streamed or not


def tones(samples: int, rate: int = RATE) -> Samples:
    """A sound within the band of a telephone that never repeats: two sweeps and some noise."""
    t = np.arange(samples) / rate
    noise = soxr.resample(np.random.default_rng(5).standard_normal(samples // 4 + 8), 1, 4)[:samples]
    sound = 0.3 * np.sin(2 * np.pi * (250 + 400 * t) * t) + 0.2 * np.sin(2 * np.pi * (1500 - 300 * t) * t)
    whole: Samples = (sound + 0.02 * noise).astype(np.float32)
    return whole


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
    """What FFmpeg makes of a file; format and rate are given only for a file without a header."""
    given: Any = {"format": HEADERLESS[name][0], "options": {"sample_rate": str(rate)}} if name in HEADERLESS else {}
    with av.open(io.BytesIO(data), **given) as container:
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format="fltp")
        frames = [made for frame in container.decode(stream) for made in resampler.resample(frame)]
        samples = np.concatenate([frame.to_ndarray()[0] for frame in frames]) if frames else np.zeros(0, np.float32)
        return Decoded(container.format.name, stream.codec_context.codec.name, stream.rate, stream.channels, samples)


def to_int16(samples: Samples) -> NDArray[np.int16]:
    """16-bit samples as FFmpeg's own conversion to float left them, back again."""
    whole: NDArray[np.int16] = np.rint(samples * 32768).astype(np.int16)
    return whole


@cache
def pcm(rate: int, speed: float = 1.0) -> NDArray[np.int16]:
    return np.frombuffer(file("pcm", rate, speed), "<i2")
