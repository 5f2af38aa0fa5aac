"""A folder for files that are being made, which is gone when its gateway is, also if that was killed.

A gateway holds a lock of its folder, which ends with it. The next one that starts removes the folders whose lock is
free: there is speech in them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "voice-clone-jobs-"


class Scratch:
    """A new folder among those for temporary files."""

    def __init__(self) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            lock = _locked(self.path)
            if lock is not None:  # else another gateway has just removed it
                self._lock = lock
                return

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_left() -> None:
    """Remove the folders of this user's gateways that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if (lock := _locked(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _locked(path: Path) -> int | None:
    """The lock of a folder, which is open; None: another one has it, or there is no such folder of this user."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened, named = os.fstat(folder), os.stat(path, follow_symlinks=False)
        if opened.st_uid == os.geteuid() and opened.st_ino == named.st_ino:
            return folder
    except OSError:
        pass
    os.close(folder)
    return None
