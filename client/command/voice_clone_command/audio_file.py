"""Write audio files other than WAV. PyAV, an extra of this package, encodes them."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike
from voice_clone_client.wav import pcm16
from voice_clone_provenance.statements import open_tagged

MISSING = "pip install av"


@dataclass(frozen=True)
class Codec:
    """FFmpeg's names of a format, and the sample rates that it takes; empty: all."""

    container: str
    encoder: str
    sample_rates: tuple[int, ...] = ()


_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
_MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
CODECS = {
    ".flac": Codec("flac", "flac"),
    ".mp3": Codec("mp3", "libmp3lame", _MP3_RATES),
    ".opus": Codec("ogg", "libopus", _OPUS_RATES),
    ".ogg": Codec("ogg", "libopus", _OPUS_RATES),
    ".m4a": Codec("ipod", "aac", _MP3_RATES),
    ".aac": Codec("adts", "aac", _MP3_RATES),
    ".webm": Codec("webm", "libopus", _OPUS_RATES),
}
M4B = Codec("mp4", "aac", _MP3_RATES)
"""Of a book with chapters: the container `ipod` takes no cover."""
SUFFIXES = (".wav", *CODECS)
"""Of the files that can be written, the one that needs no extra first."""


def has_codecs() -> bool:
    return importlib.util.find_spec("av") is not None


def formats() -> tuple[str, ...]:
    return SUFFIXES if has_codecs() else SUFFIXES[:1]


def is_encoded(path: str) -> bool:
    """Return whether `AudioFile` writes a file of this name; else it is a WAV."""
    return Path(path).suffix.lower() in CODECS


def refusal(path: str) -> str | None:
    """Return why a file of this name cannot be written; None if it can. Names without a suffix, and `-`, can."""
    suffix = Path(path).suffix.lower()
    if suffix and suffix not in SUFFIXES:
        return f"{path}: {suffix} cannot be written; give a name that ends in {', '.join(formats())}"
    if is_encoded(path) and not has_codecs():
        return f"{path}: {suffix} needs a further package: {MISSING}; .wav needs none"
    return None


class _Target:
    """A file for PyAV, which would print a traceback of its errors and lose them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._failed: OSError | None = None
        self.tell, self.seekable = file.tell, file.seekable

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self._failed = self._failed or error
            return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            return self._file.seek(offset, whence)
        except OSError as error:  # of what a buffer still held
            self._failed = self._failed or error
            return offset

    def check(self) -> None:
        """Raise the first error."""
        if self._failed is not None:
            raise self._failed


class EncodedAudio:
    """An audio stream of an open container."""

    def __init__(self, container: Any, codec: Codec, sample_rate: int, bit_rate: int | None = None) -> None:
        rates = [rate for rate in codec.sample_rates if rate >= sample_rate] or codec.sample_rates[-1:]
        self._file = container
        self._stream: Any = container.add_stream(codec.encoder, rate=rates[0] if rates else sample_rate, layout="mono")
        if bit_rate is not None:
            self._stream.bit_rate = bit_rate
        self._sample_rate = sample_rate
        self._written = 0  # samples

    def write(self, samples: ArrayLike) -> None:
        """Append float samples [n] in [-1, 1]."""
        import av

        data = np.frombuffer(pcm16(samples), np.int16)
        if not len(data):
            return
        frame = av.AudioFrame.from_ndarray(data[None], format="s16", layout="mono")
        frame.sample_rate = self._sample_rate
        frame.pts = self._written
        self._written += len(data)
        self._file.mux(self._stream.encode(frame))

    def end(self) -> None:
        """Write what the encoder still holds, and close the container."""
        self._file.mux(self._stream.encode(None))
        self._file.close()


class AudioFile:
    """Writes a mono file of a format other than WAV, as `WavWriter` writes a WAV.

    Args:
        file: open for writing, in binary; its name decides the format.
        sample_rate: see `EncodedAudio`.
        comment: for its tag, in ASCII, where the format has a place for it; None for none.
    """

    def __init__(self, file: BinaryIO, sample_rate: int, comment: str | None = None) -> None:
        codec = CODECS[Path(file.name).suffix.lower()]
        self._target = _Target(file)
        self._audio = EncodedAudio(open_tagged(self._target, codec.container, comment), codec, sample_rate)

    def write(self, samples: ArrayLike) -> None:
        """Append float samples [n] in [-1, 1]."""
        self._audio.write(samples)
        self._target.check()

    def __enter__(self) -> AudioFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._audio.end()
        self._target.check()
