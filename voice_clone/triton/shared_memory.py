"""Room for answers in the shared memory in which the processes of a Triton server hand tensors to each other.

Each process has a region there, which grows by need and never shrinks. Where it cannot grow, as in a container with
Docker's 64 MB, Triton 2.51 takes an answer for sent that was not: whoever waits for it waits for ever, and so does the
server when it stops. So a large answer is refused before Triton sees it. Another process may still take the room in
between.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from voice_clone.errors import Overloaded

FOLDER = Path("/dev/shm")
REGION = 1 << 20  # bytes that a region has from the beginning


class SharedMemory:
    """Knows what has fitted into the region of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sending = 0  # bytes of the answers under way
        self._fits = REGION // 2  # the most bytes under way for which there has been room

    @contextlib.contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Send an answer of so many bytes in the body of the `with`.

        Raises:
            Overloaded: more bytes are under way than ever before, and the region cannot grow by as much.
        """
        with self._lock:
            wanted = self._sending + size
            if wanted > self._fits:
                _check_growth(size, wanted - self._fits)
            self._sending = wanted
        try:
            yield
            with self._lock:
                self._fits = max(self._fits, wanted)
        finally:
            with self._lock:
                self._sending -= size


def _check_growth(size: int, growth: int) -> None:
    try:
        status = os.statvfs(FOLDER)
    except OSError:
        return  # no way to tell
    free = status.f_bavail * status.f_frsize
    if growth + REGION > free:
        raise Overloaded(
            f"the answer has {size / 1e6:.0f} MB, the server's shared memory only {free / 1e6:.0f} MB left; "
            "ask for less at once, or let whoever runs the server give it more (docker run --shm-size)"
        )
