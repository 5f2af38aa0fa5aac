"""Read a text from stdin, piece by piece while it is written."""

from __future__ import annotations

import codecs
import io
import threading
from collections.abc import Iterator
from typing import TextIO

from voice_clone_client.errors import InvalidArgument

PIECE = 4096  # bytes


def written(stream: TextIO) -> Iterator[str]:
    """Read a stream as soon as something is written to it. It is UTF-8, unless the user's own encoding is another one.

    Raises:
        InvalidArgument: it is no text in this encoding.
    """
    raw = getattr(stream, "buffer", None)
    if not isinstance(raw, io.BufferedIOBase):  # another program's replacement, whose text is all there
        yield stream.read()
        return
    # Below the buffer: a thread that waits in it holds its lock, and Python aborts if it is to exit meanwhile.
    source = getattr(raw, "raw", raw)
    encoding = codecs.lookup(stream.encoding).name
    encoding = "utf-8" if encoding == "ascii" else encoding  # which Python takes where the user has named none
    decoder = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)()
    try:
        while piece := source.read(PIECE):
            yield decoder.decode(piece)
        yield decoder.decode(b"", True)
    except UnicodeDecodeError:
        name = encoding.upper()
        raise InvalidArgument(f"stdin is not {name}; encode its text as {name}") from None


class Tee:
    """Gives one reader the pieces of a text, and another one later the whole text."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = pieces
        self._seen: list[str] = []
        self._reading = threading.Lock()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._reading:
            piece = next(self._pieces)
            self._seen.append(piece)
            return piece

    def rest(self) -> str:
        """Wait for the end and return all of the text. The first reader may still wait for a piece; none is lost."""
        for _ in self:
            pass
        return "".join(self._seen)
