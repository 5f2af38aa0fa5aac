"""Work in processes side by side, which end with the one that began them, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any

from voice_clone_server import guard


def each_done(jobs: int, function: Callable[..., None], calls: Iterable[tuple[Any, ...]]) -> Iterator[None]:
    """Call `function` with each of `calls`, in `jobs` processes; yields, in order, when one is done.

    Raises:
        KeyboardInterrupt: as it came; the calls that are at work end first, the others are left out.
    """
    os.environ.update(guard.marked())  # the processes inherit the mark
    spawn = multiprocessing.get_context("spawn")
    # Ctrl-C reaches them, too, but it is for this process to handle.
    pool = ProcessPoolExecutor(jobs, spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        waiting, begun = iter(calls), deque[Future[None]]()
        while True:
            # The pool hands out one call more than it has processes, and that one could not be taken back.
            while sum(not future.done() for future in begun) < jobs and (call := next(waiting, None)) is not None:
                begun.append(pool.submit(function, *call))
            if not begun:
                return
            if begun[0].done():
                yield begun.popleft().result()
            else:
                wait([future for future in begun if not future.done()], return_when=FIRST_COMPLETED)
    except KeyboardInterrupt:
        print("Stopping after the shards that are begun ...", file=sys.stderr, flush=True)
        raise
    finally:
        pool.shutdown(cancel_futures=True)
