"""A file that keeps arrays for the next start, which maps it: a network's packed weights, or machine code.

Form: 16 bytes of XXH3 over all that follows; the header's length, 8 bytes, little-endian; the header, JSON; the arrays,
each from the beginning of a page on. The header names the key, which stands for everything that the arrays depend on,
and each array's type, shape and place, counted from the first page behind the header.

A file is mapped privately: processes share its pages until one writes to them, and nothing that is written
reaches the file. A file is never changed, only replaced or removed as a whole, which a process that has mapped it does
not notice.

Reading all of a file takes a start longer than all else. So the first one that finds it whole leaves a stamp beside it:
device, inode, size and times of the file, which change if it is written. A stamp's own time is that of the latest use.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ENDING, STAMP = ".packed", ".stamp"
WORTH = 32 << 20  # bytes; fewer are packed faster than a file is found
FEW = 16 << 20  # bytes that a process may well have mapped
WRITING = "writing-"  # begins the name of a file that is not whole yet
DIGEST, LENGTH = 16, 8  # bytes

Make = Callable[[], Sequence[NDArray[Any]]]
Part = Callable[[Make], list[NDArray[Any]]]
"""The arrays of one part of a network: found, or made."""

log = logging.getLogger(__name__)


class PackedFile:
    """The arrays of one network: those of its file if it is there and sound, else made, and kept by `keep`.

    Args:
        folder: of the files; None: nothing is kept.
        key: everything that the arrays depend on, fit for JSON.
        most: bytes of all files of the folder; the least recently used are removed, but none that was used lately.
        any_size: whether less than `WORTH` is kept, too.

    Attributes:
        found: whether the file is there and sound.
    """

    def __init__(self, folder: Path | None, key: Mapping[str, Any], most: int, any_size: bool = False) -> None:
        self._folder, self._most, self._any_size = folder, most, any_size
        self._key = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
        self._arrays: dict[str, list[NDArray[Any]]] = {}
        self._sparse: set[str] = set()
        if folder is not None:
            self._arrays = _read(folder / f"{self._key}{ENDING}", self._key)
        self.found = bool(self._arrays)

    def part(self, name: str, sparse: bool = False) -> Part:
        """A part of the network, which is made if there is no file. `sparse`: little of it is read at a time."""
        if self._folder is None:
            return made
        if sparse:
            self._sparse.add(name)

        def take(make: Make) -> list[NDArray[Any]]:
            if not self.found:
                self._arrays[name] = made(make)
            return self._arrays[name]

        return take

    def keep(self) -> None:
        """Write the file if there is none, and remove others until the folder is small enough.

        It never raises: without a file only the next start takes longer.
        """
        arrays, self._arrays = self._arrays, {}
        size = sum(array.nbytes for part in arrays.values() for array in part)
        if self.found or self._folder is None or (size < WORTH and not self._any_size):
            return
        from voice_clone.native import packed_writing  # the next start finds the file, and needs it no more

        began = time.monotonic()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Else models that start together would remove each other's files, and each start would write all again.
            if packed_writing.used_lately(self._folder) + size > self._most:
                log.warning(
                    "the packed weights, %.1f GB, are not kept for the next start: with those of models that started "
                    "in the last minutes they exceed packed_bytes, %.1f GB",
                    size / 1e9,
                    self._most / 1e9,
                )
                return
            if not packed_writing.has_room(self._folder, size):
                log.warning("nothing is kept for the next start: there is no room in the cache")
                return
            packed_writing.write(self._folder / f"{self._key}{ENDING}", self._key, arrays, self._sparse)
            packed_writing.bound(self._folder, self._most)
        except OSError as error:
            log.warning("nothing is kept for the next start: %s", error.strerror)
            return
        level = logging.INFO if size >= WORTH else logging.DEBUG
        log.log(
            level, "packed weights kept for the next start: %.1f MB in %.1f s", size / 1e6, time.monotonic() - began
        )


NOWHERE = PackedFile(None, {}, 0)


def made(make: Make) -> list[NDArray[Any]]:
    """A part that is kept nowhere."""
    return [np.ascontiguousarray(array) for array in make()]


class MappedPages:
    """The pages of a file behind arrays of which little is read at a time, such as tables of embeddings.

    The system maps what lies near a number that is read, too: for some rows in the end all of a table.

    Args:
        arrays: of `sparse` parts.
    """

    def __init__(self, *arrays: NDArray[Any]) -> None:
        self._places: list[tuple[mmap.mmap, int, int]] = []
        if sum(array.nbytes for array in arrays) < FEW:
            return
        for array in arrays:
            owner: Any = array
            while isinstance(owner, np.ndarray):
                owner = owner.base
            if isinstance(owner, memoryview) and isinstance(owner.obj, mmap.mmap):
                begin = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
                self._places.append((owner.obj, begin, array.nbytes))

    def give_back(self, first: int = 0, last: int | None = None) -> None:
        """Give those of some arrays back to the system; what is read again comes from its cache of the file."""
        for mapped, begin, size in self._places[first:last]:
            mapped.madvise(mmap.MADV_DONTNEED, begin, size)


def _read(path: Path, key: str) -> dict[str, list[NDArray[Any]]]:
    """The mapped arrays of a file by their part; none if it is not there, not ours or not sound."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not _ours(status):
                log.warning("a file in the cache could have been written by others; it is made again")
                return {}
            stamped = _is_stamped(path, status)
            if not stamped:
                from voice_clone.native import packed_writing

                packed_writing.check(file)
            places, first = _header(file, key)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            with contextlib.suppress(OSError):  # a read-only folder
                if not stamped:
                    packed_writing.stamp(file, path.with_suffix(STAMP), _unchanged(status))
                os.utime(path.with_suffix(STAMP))
        return {name: [_array(mapped, first, *place) for place in part] for name, part in places.items()}
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        log.warning("a file in the cache is damaged; it is made again")
    return {}


def _ours(status: os.stat_result) -> bool:
    """Whether no other user could have written a file."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def _unchanged(status: os.stat_result) -> bytes:
    """What of a file changes when it is written."""
    return repr((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)).encode()


def _is_stamped(path: Path, status: os.stat_result) -> bool:
    try:
        with path.with_suffix(STAMP).open("rb") as stamp:
            return _ours(os.fstat(stamp.fileno())) and stamp.read() == _unchanged(status)
    except OSError:
        return False


def _header(file: io.BufferedReader, key: str) -> tuple[dict[str, list[Any]], int]:
    """Where the arrays of a file lie, and the offset from which their places count.

    Raises:
        ValueError: it is the file of another key.
    """
    file.seek(DIGEST)
    size = int.from_bytes(file.read(LENGTH), "little")
    header: dict[str, Any] = json.loads(file.read(size))
    if header["key"] != key:
        raise ValueError
    return header["arrays"], page(file.tell())


def _array(mapped: mmap.mmap, first: int, kind: str, shape: list[int], place: int) -> NDArray[Any]:
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, kind)
    array: NDArray[Any] = np.frombuffer(mapped, kind, count, first + place).reshape(shape)
    return array


def page(offset: int) -> int:
    """The first page that begins at or behind an offset."""
    return -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
