"""Room for answers in the shared memory in which the processes of a Triton server hand tensors to each other.

Each process has a region there, which grows by need and never shrinks. Where it cannot grow, as in a container with
Docker's 64 MB, Triton 2.51 takes an answer for sent that was not: whoever waits for it waits for ever, and so does the
server when it stops. So a large answer is refused before Triton sees it.
"""

from __future__ import annotations

import os
from pathlib import Path

from voice_clone.errors import Overloaded

FOLDER = Path("/dev/shm")
REGION = 1 << 20  # bytes that a region has from the beginning


class SharedMemory:
    """What of it this process's answers may need. Thread-safe."""

    def __init__(self) -> None:
        self._largest = REGION // 2  # bytes of the largest answer for which there has been room

    def check(self, size: int) -> None:
        """There must be room for an answer of so many bytes.

        Raises:
            Overloaded: it is larger than any before, and the region cannot grow by as much.
        """
        if size <= self._largest:
            return
        try:
            status = os.statvfs(FOLDER)
        except OSError:
            return  # no way to tell
        free = status.f_bavail * status.f_frsize
        if size + REGION > free:
            raise Overloaded(
                f"the answer has {size / 1e6:.0f} MB, the server's shared memory only {free / 1e6:.0f} MB left; "
                "ask for less at once, or let whoever runs the server give it more (docker run --shm-size)"
            )
        self._largest = size
