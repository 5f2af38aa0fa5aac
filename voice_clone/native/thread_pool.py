"""The threads that run native code together: the caller's thread and its helpers."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from voice_clone.native.instructions import INSTRUCTIONS
from voice_clone.native.kernel import Kernel

log = logging.getLogger(__name__)

MIN_PARALLEL_MULTIPLICATIONS = 1 << 18  # waking a thread takes about as long as so many multiplications


class ThreadPool:
    """Runs a kernel on several threads at once; see kernels/work_sharing.py. One caller at a time.

    The kernel raises nothing. It returns on the caller's thread when its last phase has ended. A helper may still be
    running it then: the helper has its own references to the arguments, and finds no chunk to claim.

    Args:
        threads: how many threads run a function, the caller's included.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._job: Callable[[int], None]
        self._starts = [threading.Semaphore(0) for _ in range(1, threads)]
        for number, start in enumerate(self._starts, 1):
            threading.Thread(target=self._help, args=(number, start), name=f"native-{number}", daemon=True).start()

    def run(self, kernel: Kernel, phases: int, multiplications: int, *arguments: Any) -> None:
        """Run a kernel on all threads, or on the caller's thread alone if it multiplies too little.

        Args:
            kernel: it takes the thread's number, the number of threads, the phases' counters, and the arguments.
            phases: the number of its phases.
            multiplications: about how many it does.
            arguments: passed on.
        """
        job = kernel.on_thread(self.threads, np.zeros(2 * phases, np.int64), *arguments)
        if multiplications >= MIN_PARALLEL_MULTIPLICATIONS:
            self._job = job
            for start in self._starts:
                start.release()
        job(0)

    def release(self) -> None:
        """Release the arguments of the last kernel; no caller is in `run`."""
        self._job = _nothing

    def _help(self, number: int, start: threading.Semaphore) -> None:
        while True:
            start.acquire()
            self._job(number)


def _nothing(number: int) -> None:
    """The job of helpers that start when their kernel has ended."""


_OF_TORCH = "OMP_NUM_THREADS"  # torch reads this variable when it is imported
_CORES = Path("/sys/devices/system/cpu")

_pool: ThreadPool | None = None


def computing_threads() -> int:
    """How many threads compute in this process: torch's number, or what torch would take if it were imported."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    given = os.environ.get(_OF_TORCH, "")
    return int(given) if given.isdecimal() and int(given) else _cores()


def use_threads(count: int) -> None:
    """Let so many threads compute, whether torch is imported already, later, or never."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
    else:
        os.environ[_OF_TORCH] = str(count)


def thread_pool() -> ThreadPool:
    """This process's pool. The first call makes it, with as many threads as then compute."""
    global _pool
    if _pool is None:
        _pool = ThreadPool(computing_threads())
        log.info("native code, threads: %d, instructions: %s", _pool.threads, INSTRUCTIONS)
    return _pool


def release_arguments() -> None:
    """Release the arrays of the last kernel, which helpers may start to run late."""
    if _pool is not None:
        _pool.release()


def leave_threads_to_native_code() -> None:
    """Make the pool, and let torch compute with one thread from now on.

    torch's other threads spin for milliseconds after each operation, on cores that native threads need. Call this
    after loading, which takes torch long and gains from its threads.
    """
    thread_pool()
    use_threads(1)


def _cores() -> int:
    """The cores that this process may use. Two processors that share a core count once: they share its vector units."""
    processors = os.sched_getaffinity(0)
    siblings = (_CORES / f"cpu{number}/topology/thread_siblings_list" for number in processors)
    return len({file.read_text() if file.exists() else file.parent for file in siblings})
