"""The memory through which a tritonserver and its models exchange tensors: readable to its user alone, gone with it.

Clips, transcripts and audio go through its regions, which are files in `FOLDER`. They are still there after a server
that was killed. The number of its process does not say whether it lives: numbers come again, also in other containers
that share the folder. So each server has a lock (flock) on a file beside its regions. The kernel frees it with the last
process that has it, whatever ends them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from voice_clone_program.confinement import keep_memory_private

FOLDER = Path("/dev/shm")
NAME = "voice_clone_"  # begins the name of all that our servers have there
LOCK = ".lock"
SCRATCH = "voice-clone-"  # begins the name of a server's scratch folder
OLD = 24 * 3600.0  # seconds; a region without a lock that is older was left by a server that knew no locks


class ServerMemory:
    """The names of one server's regions, and its lock.

    Args:
        scratch: the server's scratch folder, which is removed with the regions.

    Attributes:
        prefix: begins the name of each of its regions, and of nothing else.
        pattern: finds all that it has in `FOLDER`, by `glob`.
    """

    def __init__(self, scratch: Path) -> None:
        name = f"{NAME}{secrets.token_hex(8)}"
        self.prefix = f"{name}_"
        self.pattern = f"{FOLDER}/{name}*"
        self._file = FOLDER / f"{name}{LOCK}"
        self._scratch = scratch
        self._lock: int | None = None

    def lock(self) -> int:
        """A descriptor that keeps regions and scratch folder for as long as a process has it.

        Raises:
            OSError: `FOLDER` takes no file.
        """
        while self._lock is None:
            lock = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                os.write(lock, os.fsencode(self._scratch))
                self._lock = lock
            else:  # another server that starts has found the file before it was locked
                os.close(lock)
        return self._lock

    def regions(self) -> list[Path]:
        return list(FOLDER.glob(f"{self.prefix}*"))

    def release(self) -> None:
        """Give the lock up, once the server has ended."""
        if self._lock is not None:
            self._file.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None


def remove_dead() -> None:
    """Remove regions and scratch folders of this user's servers of which no process is left."""
    for file in FOLDER.glob(f"{NAME}*{LOCK}"):
        with contextlib.suppress(OSError):  # its server lives, or is another user's
            lock = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(lock, "rb") as opened:
                if not _is_ours(os.fstat(lock)):
                    continue
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.fstat(lock).st_nlink:  # another start was faster
                    continue
                for region in FOLDER.glob(f"{file.name.removesuffix(LOCK)}_*"):
                    _remove(region)
                _remove_scratch(Path(os.fsdecode(opened.read())))
                _remove(file)
    _remove_old()


def _remove_old() -> None:
    """Remove regions of servers that knew no locks: old ones that no process of this user has."""
    found = [
        region
        for region in FOLDER.glob(f"{NAME}*")
        if region.suffix != LOCK and not region.with_name(region.name.rpartition("_")[0] + LOCK).exists()
    ]
    now, used = time.time(), b""
    for region in found:
        with contextlib.suppress(OSError):
            status = region.lstat()
            if now - max(status.st_mtime, status.st_ctime) > OLD:
                used = used or _maps()
                if os.fsencode(region) not in used:
                    _remove(region)


def _maps() -> bytes:
    """What the processes that this one may look at have in their memory."""
    found = [b"-"]
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            found.append(maps.read_bytes())
    return b"".join(found)


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode) and status.st_nlink <= 1


def _remove(file: Path) -> None:
    """Remove a file of this user; root may remove those of others, but none of them is ours."""
    with contextlib.suppress(OSError):
        if _is_ours(file.lstat()):
            file.unlink()


def _remove_scratch(folder: Path) -> None:
    with contextlib.suppress(OSError):
        status = folder.lstat()
        if folder.is_absolute() and folder.name.startswith(SCRATCH) and status.st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)


def start_privately(start: Callable[[], object]) -> None:
    """Call a function that starts a tritonserver with the umask 077, so that its regions are for this user alone.

    The umask is not enough: Boost makes each region readable to all once it is open. The kernel can leave that out,
    for a thread and what it starts. Where it cannot, each model does it for its own region, a moment later.
    """

    def run() -> None:
        if (lack := keep_memory_private()) is not None:
            print(f"shared memory is readable to all for the first moment of each model: {lack}", file=sys.stderr)
        start()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(run).result()
