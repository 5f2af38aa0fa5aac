"""File operations. A store changes nothing except by these, so tests can let a process die between any two of them.

A batch replaces several files together: all of them, or none, also when the process or the machine dies in between.
The new files are written under temporary names in the folder of the old ones. Then a list of them is written, whole or
not at all: with it the change is made. Then each file gets its name, and the list is removed. A later process that
finds a list finishes its batch.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from voice_clone.errors import Internal, Overloaded, VoiceCloneError

log = logging.getLogger(__name__)

TEMPORARY = ".temporary-"  # prefix of files that are still being written


class Files:
    """Operations on the file system."""

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
            # An older folder may be unreadable for us. It is synced in case the process that made it died before.


def make_folder(files: Files, path: Path) -> None:
    """A folder that only its user may read; a file in its place is renamed. The caller then syncs the directory."""
    if path.is_symlink():  # it would lead elsewhere
        raise NotADirectoryError(errno.ENOTDIR, "a symbolic link")
    if path.exists() and not path.is_dir():
        files.rename(path, path.with_name(f"{path.name}.{time.time_ns()}"))
    if not path.exists():
        files.make_directory(path, 0o700)
    if stat.S_IMODE(path.stat().st_mode) != 0o700:  # a read-only disk refuses this even where it changes nothing
        path.chmod(0o700)


_FULL = {errno.ENOSPC, errno.EDQUOT}
_FOR_NOW = {errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # states of the machine that may pass


@contextlib.contextmanager
def disk_errors(done: str) -> Iterator[None]:
    """Turn errors of the operating system into errors for the caller, without paths."""
    try:
        yield
    except VoiceCloneError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "input/output error"
        if error.errno in _FULL:
            log.error("the voice store is full: %s", reason)
            raise Overloaded(f"the voice store is full ({reason}); free space, then try again") from None
        if error.errno in _FOR_NOW:
            log.error("the voice store could not be %s: %s", done, reason)
            raise Overloaded(
                f"the voice store could not be {done} ({reason}); nothing was changed, try again later"
            ) from None
        log.error("the voice store could not be %s", done, exc_info=error)
        raise Internal(f"the voice store could not be {done} ({reason}); nothing was changed") from None


LIST = "import"  # the name of the list
_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")


class BatchWriter:
    """Replaces files of one folder together. Not thread-safe.

    Args:
        directory: where the list is.
        folder: where the files are.
        files: the operations on the file system.
    """

    def __init__(self, directory: Path, folder: Path, files: Files) -> None:
        self._directory = directory
        self._list = directory / LIST
        self._folder = folder
        self._files = files
        self._listed = False  # a list may be on the disk
        self._unnamed: list[str] = []  # its files that have their temporary names

    @property
    def unfinished(self) -> bool:
        """Whether `finish` has something to do."""
        return self._listed

    def replace(self, contents: Iterable[tuple[Path, Callable[[], bytes]]]) -> None:
        """Put these bytes at these paths. The change is made when this returns; `finish` gives the files their names.

        The batch before is finished first: there is one list.

        Raises:
            OSError: nothing has changed and no temporary file is left.
        """
        if self._listed:
            self.finish()
        written: list[Path] = []
        names: list[str] = []
        try:
            for path, data in contents:
                names.append(path.name)
                written.append(self._temporary(path.name))
                with contextlib.suppress(FileNotFoundError):  # left by a failure whose clean-up failed as well
                    self._files.remove(written[-1])
                self._files.write(written[-1], data())
            self._files.sync_directory(self._folder)
            replace_file(self._files, self._list, json.dumps(names).encode())
        except OSError:
            for path in written:
                with contextlib.suppress(OSError):
                    self._files.remove(path)
            raise
        self._listed, self._unnamed = True, names

    def finish(self) -> None:
        """Give the files of the list their names, and remove it.

        Raises:
            OSError: call it again; the files count as replaced all the same.
        """
        while self._unnamed:
            with contextlib.suppress(FileNotFoundError):  # it got its name before a crash
                self._files.rename(self._temporary(self._unnamed[-1]), self._folder / self._unnamed[-1])
            self._unnamed.pop()
        self._files.sync_directory(self._folder)  # the list must not go before the names are durable,
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(self._list)
        self._files.sync_directory(self._directory)  # and must not reappear next to the files of another batch
        self._listed = False

    def restore(self) -> None:
        """Read the list that an earlier process left, if it left one."""
        if not self._list.exists():
            return
        try:
            with self._list.open("rb") as file:
                names = json.loads(file.read(1 << 24))
            if not isinstance(names, list) or not all(isinstance(n, str) and _NAME.fullmatch(n) for n in names):
                raise ValueError("it lists other things")
        except (ValueError, RecursionError) as error:  # not ours: our writes are atomic
            log.warning("a list of imported voices is damaged and is ignored: %s", error)
            return
        finally:
            self._listed = True
        log.info("finishing the import of %d voices", len(names))
        self._unnamed = names

    def path_of(self, path: Path) -> Path:
        """Where the bytes of a file are now."""
        return self._temporary(path.name) if path.name in self._unnamed else path

    def _temporary(self, name: str) -> Path:
        return self._folder / f"{TEMPORARY}{LIST}-{name}"
