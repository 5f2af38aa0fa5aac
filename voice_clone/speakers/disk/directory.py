"""What the directory of the speakers has besides their files: lock, quarantine, and the counter of generations."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import socket
import stat
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from voice_clone.errors import Overloaded
from voice_clone.speakers.disk.files import Files, replace_file
from voice_clone.speakers.record import MAX_GENERATION, SpeakerRecord

log = logging.getLogger(__name__)

LOCK = "lock"  # the file


def holder(directory: Path) -> str | None:
    """The process that owns a directory of voices; None: no process. Changes nothing."""
    try:
        # O_NONBLOCK: what has this name may be a FIFO
        handle = os.open(directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return None if _locked(handle) else _named(os.pread(handle, 4096, 0))
    finally:
        os.close(handle)


def own(path: Path, wait: float) -> int:
    """Lock a directory of voices for this process while the returned file stays open; the file names the process.

    A directory belongs to one process, and this file is locked while that process lives.

    Args:
        wait: seconds to wait for another process to release it.

    Raises:
        Overloaded: another process owns it; the message names that one.
        OSError: the file cannot be made.
    """
    _clear(path)
    handle = _opened(path)
    deadline = time.monotonic() + wait
    waiting = False
    while not _locked(handle):
        named = _named(os.pread(handle, 4096, 0))
        if time.monotonic() < deadline:
            if not waiting:
                log.info("the voice directory is in use by %s; waiting for it, %g s at most", named, wait)
            waiting = True
            time.sleep(0.05)
            continue
        os.close(handle)
        raise Overloaded(
            f"the voice directory is in use by {named}; stop that server or give this one a directory of its own"
        )
    with contextlib.suppress(OSError):  # the disk may be full, which must not keep the voices from being served
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
    return handle


def owned(path: Path, handle: int) -> int:
    """The lock file by which this process owns the directory: `handle`, or a new one if that was removed or replaced.

    Raises:
        Overloaded: another process owns the directory by now.
        OSError: the file cannot be made.
    """
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.lstat(path), os.fstat(handle)):
            return handle
    log.error("somebody removed the lock of the voice directory, by which one server alone changes it")
    again = own(path, 0.0)
    os.close(handle)
    return again


def _opened(path: Path) -> int:
    """The file; for reading alone where the disk takes no writes, since its voices can still be served."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS or not path.exists():
            raise
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _clear(path: Path) -> None:
    """Rename what is no regular file: no process can own the directory by it."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            path.rename(path.with_name(f"{path.name}.{time.time_ns()}"))


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _named(text: bytes) -> str:
    try:
        owner = json.loads(text)
        return f"process {owner['pid']} on {owner['host']}"
    except Exception:  # it may hold anything
        return "another process"


LOGGED = 20  # things set aside that are logged one by one
_ODD = re.compile(r"[^A-Za-z0-9._-]")


class Quarantine:
    """The folder of files that cannot be read, and of other things in their place, kept for inspection.

    Each gets a plain name of its own, whatever its name was."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder = folder
        self._files = files
        self.taken = 0  # things

    def take(self, path: Path, reason: str) -> None:
        """Move a file, or anything else, here; the caller then makes it durable.

        Raises:
            OSError: it is still where it was.
        """
        name = _plain(path)
        number, self.taken = self.taken, self.taken + 1
        self._files.rename(path, self._folder / f"{name}.{time.time_ns()}.{number}")
        if number < LOGGED:
            log.warning("set %s aside in quarantine: %s", name, reason)
        elif number == LOGGED:
            log.warning("set more aside in quarantine; only the first %d are logged", LOGGED)

    def try_to_take(self, path: Path, reason: str) -> None:
        """Take it; where that is impossible it stays, and nothing else happens."""
        try:
            self.take(path, reason)
        except OSError as failure:
            log.warning("%r is of no use (%s), and could not be set aside: %s", path.name, reason, failure.strerror)

    def erase(self, path: Path) -> None:
        """Remove all that ever came from this path.

        Raises:
            OSError: something of it is still here.
        """
        found = list(self._folder.glob(f"{_plain(path)}.*"))
        for each in found:
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            else:
                with contextlib.suppress(FileNotFoundError):
                    self._files.remove(each)
        if found:
            self._files.sync_directory(self._folder)


def _plain(path: Path) -> str:
    return _ODD.sub("_", path.name)[:100]


_BATCH = 64  # generations reserved by one write; a crash skips the unused ones
_NUMBER = re.compile(rb"[0-9]{1,18}")


class Generations:
    """Numbers, each larger than all before it, across processes: a file holds one not below any in use. Thread-safe.

    Args:
        path: the file.
        files: the operations on the file system. Methods raise their OSError; then no number was given.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._lock = threading.Lock()
        self._next = self._reserved = 0

    def start(self, records: Iterable[SpeakerRecord]) -> None:
        """Continue above every earlier generation, including those of deleted speakers."""
        above = max((record.generation for record in records), default=0)
        if self._path.exists():
            text = b""
            with contextlib.suppress(OSError), self._path.open("rb") as file:
                text = file.read(64).strip()
            if _NUMBER.fullmatch(text) and int(text) < MAX_GENERATION:
                above = max(above, int(text))
            else:
                log.warning("the generation counter is damaged; generations continue from the clock")
                above = max(above, int(time.time()))
        self._next = self._reserved = above

    def next(self) -> int:
        """The next number."""
        with self._lock:
            if self._next >= self._reserved:
                self._reserve(self._next + _BATCH)
            self._next += 1
            return self._next

    def give_back(self) -> None:
        """Leave no unused numbers to the next process."""
        with self._lock:
            if self._next < self._reserved:
                self._reserve(self._next)

    def _reserve(self, until: int) -> None:
        replace_file(self._files, self._path, str(until).encode())
        self._files.sync_directory(self._path.parent)
        self._reserved = until
