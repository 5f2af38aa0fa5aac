"""Broken and hostile audio files, made of a random generator."""

from __future__ import annotations

import base64
import io
import random
import struct
from collections.abc import Callable

import numpy as np
import soundfile

MAGIC = (
    *(b"RIFF\xff\xff\xff\xffWAVEfmt ", b"RIFX\0\0\0\0WAVE", b"RF64\xff\xff\xff\xffWAVEds64", b"fLaC", b"OggS\0\2"),
    *(b"FORM\0\0\0\0AIFF", b"FORM\0\0\0\x018SVX", b".snd", b"caff\0\1\0\0", b"riff\x2e\x91\xcf\x11", b"ID3\4\0\0\x7f"),
    *(b"Creative Voice File\x1a", b"MATLAB 5.0 MAT-file", b"PVF1\n", b"NIST_1A\n   1024\n", b"2BIT", b" paf", b"ALaw"),
)


def encoded(seconds: float = 2.0, form: str = "WAV", rate: int = 16000, silent: bool = False) -> bytes:
    """A good file of noise, or of silence."""
    samples = np.random.default_rng(0).uniform(-0.3, 0.3, int(seconds * rate)) * (not silent)
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=form)
    return out.getvalue()


GOOD = {form: encoded(form=form) for form in ("WAV", "FLAC", "OGG", "MP3")}
FLAC_BOMB = encoded(600.0, "FLAC", silent=True)  # ten minutes in a few kilobytes


def wav(rng: random.Random) -> bytes:
    """A WAV header that lies about its samples."""
    rate = rng.choice([0, 1, 7999, 16000, 192001, 2**32 - 1])
    channels = rng.choice([0, 1, 2, 9, 1024, 65535])
    bits = rng.choice([0, 1, 7, 8, 16, 24, 32, 64, 65535])
    kind = rng.choice([0, 1, 2, 3, 6, 7, 0x11, 0x31, 0x55, 0xFFFE, 0xFFFF])
    align, claimed = rng.choice([0, 2, 65535]), rng.choice([0, 2, 4 * 10**9, 2**32 - 1, 2 * 10**9])
    body = rng.randbytes(rng.choice([0, 2, 1000, 40000]))
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, kind, channels, rate, 2**31, align, bits)
    return struct.pack("<4sI4s", b"RIFF", 2**32 - 1, b"WAVE") + head + struct.pack("<4sI", b"data", claimed) + body


def cut(rng: random.Random) -> bytes:
    """A good file that ends too early."""
    good = rng.choice(list(GOOD.values()))
    return good[: rng.randrange(len(good))]


def flipped(rng: random.Random) -> bytes:
    """A good file with some bytes changed, most of them in its header."""
    data = bytearray(rng.choice(list(GOOD.values())))
    for _ in range(rng.choice([1, 4, 64])):
        data[rng.randrange(rng.choice([64, 256, len(data)]))] = rng.randrange(256)
    return bytes(data)


def claims(rng: random.Random) -> bytes:
    """A FLAC file that claims 2^36 - 1 samples."""
    data = bytearray(GOOD["FLAC"])
    data[21] |= 0x0F
    data[22:26] = b"\xff\xff\xff\xff"
    return bytes(data[: rng.choice([42, 1000, len(data)])])


def mp3(rng: random.Random) -> bytes:
    """Headers of MP3 frames with garbage between them."""
    return b"".join(b"\xff\xfb" + rng.randbytes(rng.choice([2, 100, 417])) for _ in range(rng.choice([1, 20, 200])))


def magic(rng: random.Random) -> bytes:
    """The first bytes of some format, and garbage."""
    return rng.choice(MAGIC) + rng.randbytes(rng.choice([0, 1, 30, 500, 50000]))


def url(rng: random.Random) -> bytes:
    """A data URL with something wrong in it."""
    head = rng.choice(["data:audio/wav;base64,", "data:,", "data:audio/wav,", "data:text/html;base64,", "data:"])
    body = base64.b64encode(rng.choice(list(GOOD.values()))).decode()
    return (head + rng.choice([body[:-1], body[:99], "@" * 100, "%00", "data:" * 50, body + "\n\0", ""])).encode()


def other(rng: random.Random) -> bytes:
    """Bytes that are no audio at all, too much audio, or audio without sound."""
    return rng.choice(
        [
            b"",
            b"\0",
            b"../../../etc/passwd",
            rng.randbytes(5000),
            FLAC_BOMB,
            encoded(0.0),
            encoded(0.01),
            encoded(2.0, rate=1000),
            encoded(2.0, silent=True),
            GOOD["WAV"] + bytes(11 << 20),
        ]
    )


KINDS: tuple[Callable[[random.Random], bytes], ...] = (wav, cut, flipped, claims, mp3, magic, url, other)


def broken_audio(rng: random.Random) -> bytes:
    """A file that no server should trust."""
    return rng.choice(KINDS)(rng)
