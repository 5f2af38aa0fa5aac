"""The directory of voices belongs to one process: a file in it is locked while that process lives, and names it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
from pathlib import Path

from voice_clone.errors import Overloaded

LOCK = "lock"  # the file
log = logging.getLogger(__name__)


def holder(directory: Path) -> str | None:
    """Who owns a directory of voices; None: nobody. Changes nothing."""
    try:
        handle = os.open(directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return None if _locked(handle) else _named(os.pread(handle, 4096, 0))
    finally:
        os.close(handle)


def own(path: Path, wait: float) -> int:
    """Lock the directory for this process while the returned file stays open."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
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
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
    return handle


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
    except (ValueError, KeyError, TypeError):
        return "another process"
