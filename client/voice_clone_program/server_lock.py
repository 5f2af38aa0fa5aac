"""A lock on the speech server, for its gateway and for the program that has started both and ends an idle server.

The gateway shares the lock while it has work. The program takes it for itself before it ends the server, and frees it
when the server is ready again. So no request meets a server that ends, and the kernel frees what a killed process had.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class ServerLock:
    """The lock, which is flock of a file. That file also says when work ended last, and whether there is new work.

    Args:
        path: of the file.
        make: the file, if it is missing. Only the program does so: no other process would have the lock of a gateway.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str | Path, make: bool = False) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o600)
        if not os.fstat(self._file).st_size:
            os.pwrite(self._file, b"-", 0)  # now, so that `ask` needs no room on a disk that has become full

    def share(self) -> bool:
        """Keep the server as it is; False if the program has the lock."""
        return self._lock(fcntl.LOCK_SH)

    def take(self) -> bool:
        """Have the lock alone; False if the gateway shares it."""
        if self.asked:  # before it is taken: a gateway that finds it taken asks again
            os.pwrite(self._file, b"-", 0)
        return self._lock(fcntl.LOCK_EX)

    def free(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def ask(self) -> None:
        """Say that there is work for the server."""
        os.pwrite(self._file, b"!", 0)

    @property
    def asked(self) -> bool:
        """Whether there is work for the server, since the lock was taken."""
        return os.pread(self._file, 1, 0) == b"!"

    def worked(self) -> None:
        """Say that work has just ended."""
        os.utime(self._file)

    @property
    def last_work(self) -> float:
        """When work ended last, or was asked for, or the lock was made, on the clock `time.time`."""
        return os.fstat(self._file).st_mtime

    def close(self) -> None:
        os.close(self._file)

    def _lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
