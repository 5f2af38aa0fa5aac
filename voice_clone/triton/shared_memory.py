"""Space for responses in the shared memory through which the processes of a Triton server exchange tensors.

Each process has a region there, which grows when needed and never shrinks. Where it cannot grow, as in a container with
Docker's 64 MB, Triton 2.51 treats an unsent response as sent (fault: unsent-response): its client waits for ever, and
so does the server when it stops. So a large response is refused before Triton gets it. Another process may still take
the space in between.

Triton makes each region readable to all users of the machine, whatever the umask is. tools/serve has the kernel prevent
that; for other servers `make_private` does it, a moment later.
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
STUB = b"triton_python_backend_stub"  # the program of a model's process; its second argument is the region


def make_private(command: Path = Path("/proc/self/cmdline")) -> None:
    """Make the region of this process readable to its user alone, where Triton runs it as a model."""
    with contextlib.suppress(OSError):
        program, _, region, *_ = [*command.read_bytes().split(b"\0"), b"", b""]
        if program.endswith(STUB) and region and b"/" not in region:
            (FOLDER / os.fsdecode(region)).chmod(0o600)


class SharedMemory:
    """Tracks how much has fitted into the region of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sending = 0  # bytes of the responses being sent
        self._fits = REGION // 2  # the most bytes sent at once so far

    @contextlib.contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Send a response of `size` bytes in the body of the `with`.

        Raises:
            Overloaded: more bytes are being sent at once than ever before, and the region cannot grow by as much.
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
        return  # the free space is unknown
    free = status.f_bavail * status.f_frsize
    if growth + REGION > free:
        raise Overloaded(
            f"the answer has {size / 1e6:.0f} MB, the server's shared memory only {free / 1e6:.0f} MB left; "
            "ask for less at once, or give the server more of it (docker run --shm-size)"
        )
