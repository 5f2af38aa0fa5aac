"""Work in processes side by side, which end with the one that began them, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import Any


def each_done(jobs: int, function: Callable[..., None], calls: Sequence[tuple[Any, ...]]) -> Iterator[None]:
    """Call `function` with each of `calls`, in `jobs` processes; yields, in order, when one is done.

    Raises:
        KeyboardInterrupt: as it came; the calls that were handed out end first, the others are left out.
    """
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin)
    try:
        for future in [pool.submit(function, *call) for call in calls]:
            yield future.result()
    except KeyboardInterrupt:
        print("Stopping after what is under way ...", file=sys.stderr, flush=True)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """In each process, first: Ctrl-C is the parent's to handle, and nothing is worked on without it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
