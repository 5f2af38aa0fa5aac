"""What a refused file is, in the message that refuses it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from voice_clone.audio import decode
from voice_clone.errors import InvalidArgument

RATE = 16_000


def encoded(container: str, codec: str, folder: Path, rate: int = RATE) -> bytes:
    """1.5 s of noise, by FFmpeg."""
    samples = np.random.default_rng(0).integers(-3000, 3000, rate * 3 // 2, np.int16)
    command = [
        "ffmpeg",
        "-v",
        "error",
        "-f",
        "s16le",
        "-ar",
        str(rate),
        "-i",
        "-",
        "-c:a",
        codec,
        "-f",
        container,
        str(folder / "a"),
    ]
    subprocess.run(command, input=samples.tobytes(), capture_output=True, check=True)
    return (folder / "a").read_bytes()


ENCODES = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="there is no program ffmpeg")


@ENCODES
@pytest.mark.parametrize(
    ("container", "codec", "kind"),
    [
        ("ogg", "libspeex", "Speex"),
        ("ogg", "flac", "OGG file with FLAC"),
        ("mpegts", "mp2", "MPEG transport stream"),
        ("avi", "pcm_s16le", "AVI"),
        ("tta", "tta", "TTA"),
        ("wv", "wavpack", "WavPack"),
        ("asf", "wmav2", "Windows Media"),
        ("au", "pcm_s16be", "AU file"),
        ("aiff", "pcm_s16be", "AIFF file"),
        ("caf", "pcm_s16le", "CAF file"),
        ("adts", "aac", "AAC file"),
        ("ac3", "ac3", "AC-3"),
        ("mpeg", "mp2", "MPEG video"),
        ("w64", "pcm_s16le", "W64"),
        ("mulaw", "pcm_mulaw", "G.711"),
        ("s16le", "pcm_s16le", "raw PCM"),
    ],
)
def test_a_sound_of_another_format(tmp_path: Path, container: str, codec: str, kind: str) -> None:
    data = encoded(container, codec, tmp_path, 48_000 if codec == "ac3" else RATE)
    with pytest.raises(InvalidArgument, match=kind):
        decode(data)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\n<!DOCTYPE html>\n<html>", "web page"),
        (b'{"error": "not found"}', "JSON"),
        (b"not found", "text"),
        ("Grüße".encode() * 5000, "text"),
        (b"%PDF-1.7\n%\xe2\xe3", "PDF"),
        (b"PK\x03\x04\x14\0", "ZIP"),
        (b"\x89PNG\r\n\x1a\n", "picture"),
        (b"\xff\xd8\xff\xe0", "picture"),
        (b"MThd\0\0\0\6", "MIDI"),
        (b"\x1f\x8b\x08\0", "gzip"),
        (b".ra\xfd\0\3", "RealAudio"),
        (b"DSD \x1c\0\0\0", "DSD"),
        (b"FORM\0\0\0\0AIFC", "AIFF"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"RIFF\x24\0\0\0", "WAV and is damaged"),
        (b"fLaC\0\0", "FLAC and is damaged"),
        (bytes(5000), "no header"),
    ],
)
def test_a_file_that_cannot_be_decoded(data: bytes, kind: str) -> None:
    with pytest.raises(InvalidArgument, match=kind):
        decode(data)
