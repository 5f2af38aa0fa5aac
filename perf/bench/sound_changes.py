"""What happens to a sound on its way: codecs, other rates, noise, cuts. Each is of samples and Hz, and gives both."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial

import av
import numpy as np
from numpy.typing import NDArray

from voice_clone.audio import resample

Samples = NDArray[np.float32]
Change = Callable[[Samples, int], tuple[Samples, int]]


def encoded(
    samples: Samples, rate: int, *, codec: str, container: str, bits: int, own_rate: int
) -> tuple[Samples, int]:
    """Encoded by FFmpeg and decoded again.

    Args:
        samples: float32 [n], mono.
        rate: Hz.
        codec, container: FFmpeg's names.
        bits: a second; 0: the codec has no choice.
        own_rate: Hz, at which the codec works.
    """
    pcm = (resample(samples, rate, own_rate).clip(-1, 1) * 32767).astype(np.int16)
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=own_rate, layout="mono")
        assert isinstance(stream, av.AudioStream)
        if bits:
            stream.bit_rate = bits
        whole = av.AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
        whole.sample_rate = own_rate
        context = stream.codec_context
        pieces = av.AudioResampler(context.format, "mono", own_rate, context.frame_size or None)
        for frame in [*pieces.resample(whole), *pieces.resample(None), None]:
            out.mux(stream.encode(frame))
    file.seek(0)
    with av.open(file, "r") as read:
        floats = av.AudioResampler("flt", "mono", own_rate)
        frames = [piece for frame in read.decode(audio=0) for piece in floats.resample(frame)]
        decoded = [frame.to_ndarray()[0] for frame in [*frames, *floats.resample(None)]]
    return np.concatenate(decoded).astype(np.float32), own_rate


def _resampled(samples: Samples, rate: int, *, target: int) -> tuple[Samples, int]:
    return resample(samples, rate, target), target


def _louder(samples: Samples, rate: int, *, decibels: float) -> tuple[Samples, int]:
    return (samples * np.float32(10 ** (decibels / 20))).clip(-1, 1), rate


def _faster(samples: Samples, rate: int, *, speed: float) -> tuple[Samples, int]:
    """As a tape that runs faster: the pitch rises, too."""
    return resample(samples, round(rate * speed), rate), rate


def _cut(samples: Samples, rate: int, *, seconds: float) -> tuple[Samples, int]:
    """A piece from the middle."""
    start = max(0, round(len(samples) / 2 - seconds * rate / 2))
    return samples[start : start + round(seconds * rate)], rate


def _noisy(samples: Samples, rate: int, *, decibels: float) -> tuple[Samples, int]:
    """White noise, so many decibels below the sound."""
    noise = np.random.default_rng(0).standard_normal(len(samples)).astype(np.float32)
    power = float(np.mean(samples**2)) * 10 ** (-decibels / 10)
    return samples + noise * np.float32(power**0.5), rate


CHANGES: dict[str, Change] = {
    "none": lambda samples, rate: (samples, rate),
    "MP3, 64 kbit/s": partial(encoded, codec="libmp3lame", container="mp3", bits=64_000, own_rate=24_000),
    "Opus, 24 kbit/s": partial(encoded, codec="libopus", container="ogg", bits=24_000, own_rate=24_000),
    "AAC, 64 kbit/s": partial(encoded, codec="aac", container="adts", bits=64_000, own_rate=24_000),
    "G.711": partial(encoded, codec="pcm_mulaw", container="wav", bits=0, own_rate=8_000),
    "at 8 kHz": partial(_resampled, target=8_000),
    "at 16 kHz": partial(_resampled, target=16_000),
    "20 dB softer": partial(_louder, decibels=-20),
    "6 dB louder, clipped": partial(_louder, decibels=6),
    "5 % faster": partial(_faster, speed=1.05),
    "5 % slower": partial(_faster, speed=0.95),
    "3 s of it": partial(_cut, seconds=3),
    "1 s of it": partial(_cut, seconds=1),
    "noise 20 dB below": partial(_noisy, decibels=20),
    "noise 10 dB below": partial(_noisy, decibels=10),
}
"""By what a table calls them."""
