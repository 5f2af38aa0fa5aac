"""Reads some tensors of a safetensors file, without mapping it.

Mapped memory ends the process where the disk fails, or where the file is cut short meanwhile; reading raises an error.
The form: the length of the header (8 bytes, little-endian), the header, a JSON object with each tensor's type, shape
and place, and the bytes of the tensors. https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load

_SIZES = {  # bytes of a number, by the name of its type
    **dict.fromkeys(("BOOL", "I8", "U8"), 1),
    **dict.fromkeys(("I16", "U16", "F16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}


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
    places = {name: _place(entry) for name, entry in entries.items()}
    return metadata, {name: memoryview(data)[start + begin : start + stop] for name, (begin, stop) in places.items()}


def _parsed(header: bytes, size: int) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """The metadata, and what is said of each tensor, in the header of a file whose tensors have `size` bytes."""
    try:
        entries: dict[str, dict[str, Any]] = json.loads(header.decode())
        metadata = dict(entries.pop("__metadata__", {}))
        end = 0
        for begin, stop in sorted(map(_place, entries.values())):
            if begin != end or stop < begin:
                raise ValueError("the tensors leave gaps, or overlap")
            end = stop
    except Exception as error:  # it may hold anything
        raise Damaged(f"the header cannot be read: {error}") from None
    if end != size:
        raise Damaged("the file is cut short, or too long")
    return metadata, entries


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


def _place(entry: Mapping[str, Any]) -> tuple[int, int]:
    """Where the bytes of a tensor begin and end, from the end of the header."""
    begin, stop = entry["data_offsets"]
    if min(entry["shape"], default=0) < 0 or stop - begin != _SIZES[entry["dtype"]] * math.prod(entry["shape"]):
        raise ValueError("a tensor has too many bytes, or too few")
    return begin, stop


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
