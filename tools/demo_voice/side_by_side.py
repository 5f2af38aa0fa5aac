"""Work in processes side by side, which end with the one that began them, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tools import guard


def each_done(jobs: int, function: Callable[..., None], calls: Sequence[tuple[Any, ...]]) -> Iterator[None]:
    """Call `function` with each of `calls`, in `jobs` processes; yields, in order, when one is done.

    Raises:
        KeyboardInterrupt: as it came; the calls that were handed out end first, the others are left out.
    """
    os.environ.update(guard.marked())  # the processes inherit the mark
    spawn = multiprocessing.get_context("spawn")
    # Ctrl-C reaches them, too, but it is for this process to handle.
    pool = ProcessPoolExecutor(jobs, spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        for future in [pool.submit(function, *call) for call in calls]:
            yield future.result()
    except KeyboardInterrupt:
        print("Stopping after the shards that are begun ...", file=sys.stderr, flush=True)
        raise
    finally:
        pool.shutdown(cancel_futures=True)
