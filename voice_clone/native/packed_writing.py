"""Writes the files of packed_file.py, checks them, removes old ones. A start that finds all does without this."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from voice_clone.native.packed_file import DIGEST, ENDING, LENGTH, STAMP, WRITING, page

ABANDONED = 3600.0  # seconds after which a file that was not finished is removed
LATELY = 300.0  # seconds in which the models of a server load, by default
_PIECE = 1 << 20  # bytes that are read at once
_SPARSE_PIECE = 16 << 10  # bytes that are written at once where little is read at a time


def check(file: io.BufferedReader) -> None:
    """Read a file. It is not mapped: no page becomes this process's memory before it is used.

    Raises:
        ValueError: it is damaged.
    """
    expected, digest, piece = file.read(DIGEST), xxhash.xxh3_128(), memoryview(bytearray(_PIECE))
    while count := file.readinto(piece):
        digest.update(piece[:count])
    if digest.digest() != expected:
        raise ValueError


def has_room(folder: Path, size: int) -> bool:
    """Whether the disk has twice so many bytes free."""
    return shutil.disk_usage(folder).free >= 2 * size


def write(
    path: Path, key: str, arrays: Mapping[str, Sequence[NDArray[Any]]], sparse: Container[str] = frozenset()
) -> None:
    """Write the file of a key.

    Linux caches what is written at once in units of up to 2 MB, and maps such a unit as a whole. So `sparse` parts are
    written in small pieces.
    """
    places: dict[str, list[Any]] = {}
    end = 0
    for name, part in arrays.items():
        places[name] = []
        for array in part:
            places[name].append((array.dtype.str, array.shape, end))
            end = page(end + array.nbytes)
    header = json.dumps({"key": key, "arrays": places}).encode()
    digest = xxhash.xxh3_128()

    def fill(file: IO[bytes]) -> None:
        def put(data: Any) -> None:
            file.write(data)
            digest.update(data)

        file.write(bytes(DIGEST))
        put(len(header).to_bytes(LENGTH, "little") + header)
        for name, part in arrays.items():
            for array in part:
                put(bytes(page(file.tell()) - file.tell()))
                data = array.reshape(-1).view(np.uint8).data
                size = _SPARSE_PIECE if name in sparse else max(1, len(data))
                for start in range(0, len(data), size):
                    put(data[start : start + size])
        file.seek(0)
        file.write(digest.digest())

    _write_whole(path, fill)


def stamp(file: io.BufferedReader, path: Path, unchanged: bytes) -> None:
    """Write the stamp of a file that was found whole."""
    os.fsync(file.fileno())  # what was read may be on no disk yet
    _write_whole(path, lambda new: new.write(unchanged))


def _write_whole(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Write a file under another name, readable by its owner alone, and give it its name when it is whole."""
    file = tempfile.NamedTemporaryFile(dir=path.parent, prefix=WRITING, delete=False)  # noqa: SIM115 - it is renamed
    try:
        with file:
            fill(file)
        os.replace(file.name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(file.name)
        raise


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """Of each packed file, when it was last used, and its size."""
    files = []
    for path in folder.glob(f"*{ENDING}"):
        with contextlib.suppress(OSError):  # another process removes, too
            status = path.stat()
            used = status.st_mtime
            with contextlib.suppress(OSError):
                used = max(used, path.with_suffix(STAMP).stat().st_mtime)
            files.append((used, status.st_size, path))
    return files


def used_lately(folder: Path) -> int:
    """Bytes of the files that were used within `LATELY`."""
    return sum(size for used, size, _ in _files(folder) if used > time.time() - LATELY)


def bound(folder: Path, most: int) -> None:
    """Remove the files that were used least recently until `most` bytes are left, and abandoned ones."""
    for path in folder.glob(f"{WRITING}*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - ABANDONED:
                path.unlink()
    files = _files(folder)
    left = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if left <= most:
            return
        with contextlib.suppress(OSError):
            path.unlink()
            path.with_suffix(STAMP).unlink()
        left -= size
