"""The operations on files: a crash may fall between any two of them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path

TEMPORARY = ".temporary-"  # prefix of files that are still being written


class Files:
    """Operations on the file system; every change of a store is made of them."""

    def write(self, path: Path, data: bytes) -> None:
        """Create a file with `data`, durable when this returns. No file of that name may exist."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file; an older file of the new name is replaced."""
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def make_directory(self, path: Path, mode: int) -> None:
        """Create a directory."""
        os.mkdir(path, mode)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Put `data` at `path`, whole or not at all. The caller then syncs the directory to make it durable.

    Raises:
        OSError: nothing has changed and no temporary file is left.
    """
    temporary = path.with_name(TEMPORARY + path.name)
    if os.path.lexists(temporary):  # left by a failure whose clean-up failed as well
        files.remove(temporary)
    try:
        files.write(temporary, data)
        files.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise


def make_path(files: Files, directory: Path) -> None:
    """Make a directory that only its user may read, and its parents, where they are missing; their names are durable.

    One that exists keeps its mode: it may hold other files.
    """
    for folder in reversed([directory, *directory.parents[:-1]]):
        made = not folder.exists()
        if made:
            with contextlib.suppress(FileExistsError):  # another process makes it, too
                files.make_directory(folder, 0o700 if folder == directory else 0o777)
        try:
            files.sync_directory(folder.parent)
        except OSError:
            if made:
                raise
            # It is not ours to read. Else it was synced for the case that an earlier process died before it did that.


def make_folder(files: Files, path: Path) -> None:
    """A folder that only its user may read; a file in its place is renamed. The caller then syncs the directory."""
    if path.is_symlink():  # it would lead elsewhere
        raise NotADirectoryError(errno.ENOTDIR, "a symbolic link")
    if path.exists() and not path.is_dir():
        files.rename(path, path.with_name(f"{path.name}.{time.time_ns()}"))
    if not path.exists():
        files.make_directory(path, 0o700)
    if stat.S_IMODE(path.stat().st_mode) != 0o700:  # a disk that takes no writes refuses even what is so already
        path.chmod(0o700)
