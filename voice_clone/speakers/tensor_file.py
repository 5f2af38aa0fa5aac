"""Reads some tensors of a safetensors file, without mapping it.

Mapped memory ends the process where the disk fails, or where the file is cut short meanwhile; reading raises an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load

from voice_clone.tensor_header import Entries, parsed, place


class Damaged(Exception):
    """The file, or a tensor of it, is not what was once written."""


class TensorFile:
    """A file that is open for reading; see `opened`.

    Attributes:
        metadata: of its header.
        entries: {tensor name: {"dtype", "shape", "data_offsets"}}.
    """

    def __init__(self, handle: int, size: int, length: int) -> None:
        self._handle = handle
        self._start = 8 + length
        self.metadata, self.entries = _parsed(_read_at(handle, 8, length), size - self._start)

    def tensors(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """These tensors.

        Raises: as `opened`.
        """
        entries, data, end = {}, [], 0
        try:
            for name in names:
                begin, stop = self.entries[name]["data_offsets"]
                data.append(_read_at(self._handle, self._start + begin, stop - begin))
                entries[name] = {**self.entries[name], "data_offsets": [end, end + stop - begin]}
                end += stop - begin
            header = json.dumps(entries).encode()
            return load(b"".join((len(header).to_bytes(8, "little"), header, *data)))
        except (Damaged, OSError):
            raise
        except Exception as error:
            raise Damaged(str(error)) from None


def bytes_of(data: bytes, most: int) -> tuple[dict[str, str], dict[str, memoryview]]:
    """The metadata of a whole file and the bytes of its tensors, of which no copy is made.

    Raises:
        ValueError: its header is larger than `most` bytes.
        Damaged: it is torn or foreign.
    """
    check_header(data, most)
    start = 8 + int.from_bytes(data[:8], "little")
    metadata, entries = _parsed(data[8:start], len(data) - start)
    places = {name: place(entry) for name, entry in entries.items()}
    return metadata, {name: memoryview(data)[start + begin : start + stop] for name, (begin, stop) in places.items()}


def _parsed(header: bytes, size: int) -> tuple[dict[str, str], Entries]:
    try:
        return parsed(header, size)
    except ValueError as error:
        raise Damaged(str(error)) from None


def check_header(data: bytes, most: int) -> None:
    """Check the size of the header before it is parsed: one of very many tensors costs a minute, and memory.

    Raises:
        ValueError: it is larger than `most` bytes.
    """
    if int.from_bytes(data[:8], "little") > most:
        raise ValueError("the header is too large")


def metadata_of(data: bytes) -> dict[str, str]:
    """The metadata in the header of a whole file, given as bytes that `safetensors` takes."""
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__") or {}


@contextlib.contextmanager
def opened(path: Path, max_bytes: int, max_header_bytes: int) -> Iterator[TensorFile]:
    """The file, if it is a regular one of at most these sizes: others must cost neither time nor memory.

    Raises:
        Damaged: it is another kind of file, too large, torn or foreign.
        OSError: it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not 8 < status.st_size <= max_bytes:
            raise Damaged("wrong size, or no regular file")
        length = int.from_bytes(_read_at(handle, 0, 8), "little")
        if length > max_header_bytes:
            raise Damaged("wrong size for the header")
        yield TensorFile(handle, status.st_size, length)
    finally:
        os.close(handle)


def _read_at(handle: int, start: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = os.pread(handle, size - len(data), start + len(data))
        if not piece:
            raise Damaged("the file is cut short")
        data += piece
    return bytes(data)
