"""The directory of voices belongs to one process: a file in it is locked while that process lives, and names it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import stat
import time
from pathlib import Path

from voice_clone.errors import Overloaded

LOCK = "lock"  # the file
log = logging.getLogger(__name__)


def holder(directory: Path) -> str | None:
    """Who owns a directory of voices; None: nobody. Changes nothing."""
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
    """Lock the directory of this file for this process while the returned file stays open.

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
    """The file by which this process owns the directory: `handle`, or another one if somebody removed or replaced that.

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
    """Rename what is no file: no process can own the directory by it."""
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
