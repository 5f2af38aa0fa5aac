"""Read what a caller gives: a path, also of a pipe, an open file, or bytes."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO

from .errors import InvalidArgument

Source = str | os.PathLike[str] | bytes | BinaryIO
"""A path, the bytes of a file, or a file that is open for reading, in binary."""

LARGEST = 512 << 20
"""Bytes of any file but a bundle; servers take less."""
LARGEST_BUNDLE = (2 << 30) - (1 << 20)
"""Bytes of a bundle: gRPC sends no larger message."""
PART = 4 << 20
"""Bytes of a bundle that are sent at once."""
_PIECE = 1 << 20


def opened(source: Source) -> BinaryIO:
    """Open it. What the caller has opened stays open: close the result only if it is another file.

    Raises:
        InvalidArgument: it is open for text.
        OSError: it cannot be opened.
    """
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if isinstance(source, str | os.PathLike):
        return open(source, "rb")
    file: Any = source
    if isinstance(file, io.TextIOBase):
        raise InvalidArgument("the file is open for text; open it in binary")
    return source


def content(source: Source, largest: int = LARGEST) -> bytes:
    """Read its bytes; those of an open file from its position on.

    Raises:
        InvalidArgument: there are more than `largest`; or as `opened`.
        OSError: it cannot be read.
    """
    if isinstance(source, bytes):
        return source
    if not isinstance(source, str | os.PathLike):
        return rest(opened(source), name(source), largest)
    with opened(source) as file:
        return rest(file, name(source), largest)


def parts(source: Source, largest: int) -> Iterator[bytes]:
    """Read it in parts of `PART` bytes. The last one is smaller and may be empty. Raises: as `content`."""
    data = content(source, largest)
    for begin in range(0, len(data) + 1, PART):
        yield data[begin : begin + PART]


def text(source: Source) -> str:
    """Read its text, without a byte order mark.

    Raises:
        InvalidArgument: it is not UTF-8; or as `content`.
        OSError: it cannot be read.
    """
    try:
        return content(source).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{name(source)} is not UTF-8 (byte {error.start}); save it as UTF-8") from None


def rest(file: BinaryIO, called: str, largest: int = LARGEST) -> bytes:
    """Read an open file from its position on. `called` is its name for errors, which are those of `content`."""
    pieces: list[bytes] = []
    size = largest + 1 if _is_larger(file, largest) else 0
    while size <= largest:
        piece = file.read(_PIECE)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
    raise InvalidArgument(f"{called} has more than {largest >> 20} MiB; give a smaller file")


def name(source: Source) -> str:
    """Return what it is called in errors."""
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return "stdin" if getattr(source, "name", None) == "<stdin>" else "the file"


def _is_larger(file: BinaryIO, largest: int) -> bool:
    """Return whether its size is known, and larger, before it is read."""
    try:
        status = os.fstat(file.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > largest
