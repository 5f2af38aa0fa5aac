"""The threads that run native code together: the caller and its helpers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Function = Callable[..., None]
"""Called by each thread with its number, the number of threads, the phases' counters, and the arguments."""


WORTH_A_WAKE = 1 << 18  # multiplications; to wake a thread takes about as long as so many


class Team:
    """Runs a compiled function on several threads at once; see kernels.py. One caller at a time.

    The function releases Python's lock, raises nothing and calls nothing of Python's. It returns when its last phase
    has ended. A helper may then still be on its way through: it has its own arguments and finds nothing left to do.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._job: tuple[Function, tuple[Any, ...]]
        self._starts = [threading.Semaphore(0) for _ in range(1, threads)]
        for number, start in enumerate(self._starts, 1):
            threading.Thread(target=self._help, args=(number, start), name=f"native-{number}", daemon=True).start()

    def run(self, function: Function, phases: int, multiplications: int, *arguments: Any) -> None:
        """Call `function`, which has so many phases, on all threads, or on this one where there is little to do."""
        counters = np.zeros(2 * phases, np.int64)
        if multiplications >= WORTH_A_WAKE:
            self._job = function, (counters, *arguments)
            for start in self._starts:
                start.release()
        function(0, self.threads, counters, *arguments)

    def _help(self, number: int, start: threading.Semaphore) -> None:
        while True:
            start.acquire()
            function, arguments = self._job
            function(number, self.threads, *arguments)


_team: Team | None = None


def team() -> Team:
    """This process's team: as many threads as torch uses when it is first asked for."""
    global _team
    if _team is None:
        _team = Team(torch.get_num_threads())
    return _team


def take_threads() -> None:
    """Leave this process's threads to native code: torch computes with one from now on.

    Its others, behind anything that they had a part in, spin for milliseconds on cores that native threads need. Call
    it when what takes torch long, loading, is over.
    """
    team()
    torch.set_num_threads(1)
