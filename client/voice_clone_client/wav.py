"""WAV files that are valid at every moment while they grow.

Format: RIFF, 16-bit PCM, mono (Microsoft, "Multimedia Programming Interface and Data Specifications 1.0", 1991). A
comment stands in a list INFO before the samples, since behind them a stream could not have it. Each write to a file
corrects the sizes in its header. In a pipe both sizes are 0xFFFFFFFF, which readers interpret as "until the end".
"""

from __future__ import annotations

import struct
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import ArrayLike

_UNKNOWN = 0xFFFFFFFF  # also for a size beyond 4 GiB
_FORMAT = struct.Struct("<4sI4s4sIHHIIHH")
_CHUNK = struct.Struct("<4sI")


def pcm16(samples: ArrayLike) -> bytes:
    """Samples in [-1, 1] as signed 16-bit little-endian PCM; values outside are clipped.

    Args:
        samples: float [n].
    """
    scaled = np.rint(np.clip(np.asarray(samples, dtype=np.float32), -1.0, 1.0) * 32767.0)
    data: bytes = scaled.astype("<i2").tobytes()
    return data


class WavWriter:
    """Writes a mono WAV to a binary file, a pipe or a socket file.

        with open("out.wav", "wb") as file, WavWriter(file, chunk.sample_rate) as wav:
            wav.write(chunk.samples)

    The caller closes the file.

    Args:
        file: open for writing, in binary, at the position where the WAV begins.
        sample_rate: Hz.
        comment: in ASCII; None for none.
    """

    def __init__(self, file: BinaryIO, sample_rate: int, comment: str | None = None) -> None:
        self._file = file
        self._rate = sample_rate
        self._list = b"" if comment is None else _info(comment)
        self._head = _FORMAT.size + len(self._list) + _CHUNK.size  # bytes before the samples
        self._bytes = 0
        self._start = file.tell() if file.seekable() else None
        self._file.write(self._header())
        self._file.flush()

    def write(self, samples: ArrayLike) -> None:
        """Append float samples [n] in [-1, 1] and flush them."""
        data = pcm16(samples)
        self._file.write(data)
        self._bytes += len(data)
        self._correct_sizes()

    @property
    def seconds(self) -> float:
        """Duration of the samples written."""
        return self._bytes / 2 / self._rate

    def __enter__(self) -> WavWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._start is not None:  # Ctrl-C may have interrupted a write
            self._file.seek(self._start + self._head + self._bytes)
            self._file.truncate()
        self._correct_sizes()

    def _correct_sizes(self) -> None:
        if self._start is not None:
            self._file.seek(self._start)
            self._file.write(self._header())
            self._file.seek(self._start + self._head + self._bytes)
        self._file.flush()

    def _header(self) -> bytes:
        """RIFF, format, comment and the head of the data chunk; 44 bytes without a comment."""
        data = _UNKNOWN if self._start is None else min(self._bytes, _UNKNOWN)
        riff = min(data + self._head - 8, _UNKNOWN)
        rate = self._rate
        form = _FORMAT.pack(b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16)
        return form + self._list + _CHUNK.pack(b"data", data)


def _info(comment: str) -> bytes:
    """A list INFO with a comment. Its text ends with a zero, and has an even length."""
    text = comment.encode("ascii") + b"\0"
    entry = _CHUNK.pack(b"ICMT", len(text)) + text + b"\0" * (len(text) % 2)
    return _CHUNK.pack(b"LIST", 4 + len(entry)) + b"INFO" + entry
