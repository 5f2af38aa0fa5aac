"""The output file of `voice-clone speak`, and its progress line."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, BinaryIO

from voice_clone_client.types import Chunk
from voice_clone_client.wav import WavWriter, pcm16
from voice_clone_program.running import naming, stdout_is_closed
from voice_clone_program.whole_file import WholeFile

from .audio_file import AudioFile, is_encoded

Comment = Callable[[Mapping[str, Any] | None], str | None]
"""The comment of a file, of the server's info on its speech so far; None for none."""


class AudioOutput:
    """An audio file in the format of its suffix, WAV if it has none, or for `-` raw PCM (16-bit little-endian mono) on
    stdout.

    The file takes the place of an older one when the `with` block ends. If it ends with an error, an older file stays
    as it was; where there was none, the file is a valid one of all chunks that arrived.

    Args:
        path: of the file, or `-`.
        comment: for its tag, where the format has a place for it.
        seal: makes the bytes of the whole file into others; None changes nothing.
        partial: after an error the file is kept, too, where there was none.
    """

    def __init__(
        self, path: str, comment: Comment, seal: Callable[[bytes], bytes] | None = None, partial: bool = True
    ) -> None:
        self._path = path
        self._comment = comment
        self._seal = seal
        self._partial = partial
        self._whole: WholeFile | None = None
        self._writer: WavWriter | AudioFile | None = None

    def write(self, chunk: Chunk) -> None:
        """Append a chunk and flush it."""
        if self._path == "-":
            write_stdout(pcm16(chunk.samples))
        else:
            comment = self._comment(chunk.info) if self._writer is None else None
            with naming(self._path):
                if self._writer is None:
                    self._whole = WholeFile(self._path)
                    kind = AudioFile if is_encoded(self._path) else WavWriter
                    self._writer = kind(self._whole.file, chunk.sample_rate, comment)
                self._writer.write(chunk.samples)

    def __enter__(self) -> AudioOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._whole is None:
            return
        try:
            with naming(self._path):
                if self._ended(kind, error, trace) and (kind is None or (self._partial and not self._whole.replaces)):
                    self._whole.keep()
        finally:
            self._whole.drop()

    def _ended(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """End the file; whether it is a valid one. What is wrong after an error is not raised as well."""
        assert self._whole is not None
        if self._writer is None:
            return False
        try:
            self._writer.__exit__(kind, error, trace)
        except Exception:
            if kind is None:
                raise
            return False
        if kind is None and self._seal is not None:
            try:
                sealed = self._seal(_content(self._whole.file))
            except BaseException:
                if not self._whole.replaces:
                    self._whole.keep()
                raise
            self._whole.file.seek(0)
            self._whole.file.truncate()
            self._whole.file.write(sealed)
        return True


def _content(file: BinaryIO) -> bytes:
    file.flush()
    file.seek(0)
    return file.read()


def write_stdout(data: bytes) -> None:
    """Write bytes to stdout at once.

    Raises:
        OSError: it takes none.
    """
    if stdout_is_closed():
        raise OSError(errno.EBADF, "it is closed", "stdout")
    with naming("stdout"):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


class Progress:
    """One line on stderr that counts the audio; none if stderr is no terminal, or `quiet`."""

    def __init__(self, quiet: bool = False) -> None:
        self._shown = not quiet and sys.stderr.isatty()
        self._began = time.monotonic()
        self._begun = False  # whether there is a line
        self._first: float | None = None  # seconds until the first samples
        self.audio = 0.0
        """Seconds that came."""

    def update(self, chunk: Chunk) -> None:
        """Count a chunk and update the line."""
        elapsed = time.monotonic() - self._began
        self.audio += len(chunk.samples) / chunk.sample_rate
        if self.audio and self._first is None:
            self._first = elapsed
        if self._first is not None:
            self.show(self.line(elapsed))

    def show(self, line: str) -> None:
        """Put another line in the place of the one before."""
        if self._shown:
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
            self._begun = True

    def line(self, elapsed: float) -> str:
        """The line after `elapsed` seconds, once there is audio; the real-time factor is elapsed time by audio time."""
        return (
            f"{self.audio:.1f} s of audio, first after {self._first or 0.0:.2f} s, "
            f"real-time factor {elapsed / self.audio:.2f}"
        )

    def end(self) -> None:
        if self._begun:
            sys.stderr.write("\n")


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """A `Progress` that ends with the block."""
    shown = Progress(quiet)
    try:
        yield shown
    finally:
        shown.end()
