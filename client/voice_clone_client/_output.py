"""The output file of `voice-clone speak`, and its progress line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from ._audio_file import AudioFile, is_encoded
from .types import Chunk
from .wav import WavWriter, pcm16

Comment = Callable[[Mapping[str, Any] | None], str | None]
"""The comment of a file, of the server's info on its speech so far; None for none."""


class AudioOutput:
    """An audio file in the format of its suffix, WAV if it has none, or for `-` raw PCM (16-bit little-endian mono) on
    stdout.

    The first chunk creates the file, so a speech that fails before it leaves an existing file unchanged. However the
    `with` block ends, the file is a valid one of all chunks that arrived.

    Args:
        path: of the file, or `-`.
        comment: for its tag, where the format has a place for it.
    """

    def __init__(self, path: str, comment: Comment) -> None:
        self._path = path
        self._comment = comment
        self._open = ExitStack()
        self._writer: WavWriter | AudioFile | None = None

    def write(self, chunk: Chunk) -> None:
        """Append a chunk and flush it."""
        if self._path == "-":
            sys.stdout.buffer.write(pcm16(chunk.samples))
            sys.stdout.buffer.flush()
            return
        if self._writer is None:
            comment = self._comment(chunk.info)
            file = self._open.enter_context(Path(self._path).open("wb"))  # noqa: SIM115
            if is_encoded(self._path):
                self._writer = self._open.enter_context(AudioFile(file, chunk.sample_rate, comment))
            else:
                self._writer = self._open.enter_context(WavWriter(file, chunk.sample_rate, comment))
        self._writer.write(chunk.samples)

    def __enter__(self) -> AudioOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)


class Progress:
    """One line on stderr that counts the audio; none if stderr is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._began = time.monotonic()
        self._first: float | None = None  # seconds until the first samples
        self._audio = 0.0  # seconds

    def update(self, chunk: Chunk) -> None:
        """Count a chunk and update the line."""
        elapsed = time.monotonic() - self._began
        self._audio += len(chunk.samples) / chunk.sample_rate
        if self._audio and self._first is None:
            self._first = elapsed
        if self._shown and self._first is not None:
            sys.stderr.write(f"\r\x1b[K{self.line(elapsed)}")
            sys.stderr.flush()

    def line(self, elapsed: float) -> str:
        """The line after `elapsed` seconds, once there is audio; the real-time factor is elapsed time by audio time."""
        return (
            f"{self._audio:.1f} s of audio, first after {self._first or 0.0:.2f} s, "
            f"real-time factor {elapsed / self._audio:.2f}"
        )

    def end(self) -> None:
        """End the line."""
        if self._shown and self._first is not None:
            sys.stderr.write("\n")


@contextmanager
def progress() -> Iterator[Progress]:
    """A `Progress` that ends with the block."""
    shown = Progress()
    try:
        yield shown
    finally:
        shown.end()
