"""The threads that run native code together: the caller's thread and its helpers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from voice_clone.native.instructions import INSTRUCTIONS

log = logging.getLogger(__name__)

Function = Callable[..., None]
"""Each thread calls it with the thread's number, the number of threads, the phases' counters, and the arguments."""

MIN_PARALLEL_MULTIPLICATIONS = 1 << 18  # waking a thread takes about as long as so many multiplications


class ThreadPool:
    """Runs a compiled function on several threads at once; see work_sharing.py. One caller at a time.

    The function releases the GIL, raises nothing and calls no Python function. It returns on the caller's thread when
    its last phase has ended. A helper may still be running it then: the helper has its own references to the
    arguments, and finds no chunk to claim.

    Args:
        threads: how many threads run a function, the caller's included.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._job: tuple[Function, tuple[Any, ...]]
        self._starts = [threading.Semaphore(0) for _ in range(1, threads)]
        for number, start in enumerate(self._starts, 1):
            threading.Thread(target=self._help, args=(number, start), name=f"native-{number}", daemon=True).start()

    def run(self, function: Function, phases: int, multiplications: int, *arguments: Any) -> None:
        """Call a function on all threads, or on the caller's thread alone if it multiplies too little.

        Args:
            function: see `Function`.
            phases: the number of its phases.
            multiplications: about how many it does.
            arguments: passed on.
        """
        counters = np.zeros(2 * phases, np.int64)
        if multiplications >= MIN_PARALLEL_MULTIPLICATIONS:
            self._job = function, (counters, *arguments)
            for start in self._starts:
                start.release()
        function(0, self.threads, counters, *arguments)

    def _help(self, number: int, start: threading.Semaphore) -> None:
        while True:
            start.acquire()
            function, arguments = self._job
            function(number, self.threads, *arguments)


_pool: ThreadPool | None = None


def thread_pool() -> ThreadPool:
    """This process's pool. The first call makes it, with as many threads as torch then uses."""
    global _pool
    if _pool is None:
        _pool = ThreadPool(torch.get_num_threads())
        log.info("native code, threads: %d, instructions: %s", _pool.threads, INSTRUCTIONS)
    return _pool


def leave_threads_to_native_code() -> None:
    """Make the pool with torch's number of threads, and let torch compute with one thread from now on.

    torch's other threads spin for milliseconds after each operation, on cores that native threads need. Call this
    after loading, which takes torch long and gains from its threads.
    """
    thread_pool()
    torch.set_num_threads(1)
