"""Makes many speeches in the background: several at once, with retries, and an orderly stop."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

from voice_clone_client.callers import on_behalf_of
from voice_clone_client.client import Client
from voice_clone_client.errors import BrokenStream, ConnectionFailed, DeadlineExceeded, Internal, Overloaded

PARALLEL = 8
"""Speeches at once: as many as a server on a CPU makes by default. More of them wait in its queue."""
PATIENCE = 600.0
"""Seconds for which a speech is tried again while the server cannot make it."""
_TRANSIENT = (BrokenStream, ConnectionFailed, DeadlineExceeded, Overloaded)
_FAULTS = 3  # of the server at one speech, which may be the cause
_LEAST_WAIT, _LONGEST_WAIT = 0.2, 15.0
_LOOK_SECONDS = 0.2  # a signal that another thread received wakes the main one only now

T = TypeVar("T")
R = TypeVar("R")


class Work:
    """Threads that speak, as work of the class batch."""

    def __init__(self, client: Client, parallel: int) -> None:
        self._client, self._parallel = client, parallel
        self._stopped = threading.Event()

    def done(self, items: Iterable[T], work: Callable[[T], R]) -> Iterator[R]:
        """What `work` makes of the items, as it is done. The first error ends all of it."""
        ahead, running = iter(items), set[Future[R]]()
        pool = ThreadPoolExecutor(self._parallel)
        try:
            while True:
                for item in islice(ahead, self._parallel - len(running)):
                    running.add(pool.submit(self._run, work, item))
                if not running:
                    return
                ended, running = wait(running, _LOOK_SECONDS, FIRST_COMPLETED)
                for each in ended:
                    yield each.result()
        except BaseException:
            self._stopped.set()
            self._client.close()  # speeches that run end at once
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def patiently(self, speak: Callable[[], R]) -> R:
        """What a function returns that asks the server; it is called again after an error that may pass.

        Raises:
            VoiceCloneError: another one; or it did not pass.
        """
        until, pause, faults = time.monotonic() + PATIENCE, _LEAST_WAIT, 0
        while True:
            try:
                return speak()
            except (*_TRANSIENT, Internal) as error:
                faults += isinstance(error, Internal)
                if faults == _FAULTS or time.monotonic() > until or self._stopped.is_set():
                    raise
            self._stopped.wait(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, _LONGEST_WAIT)

    @staticmethod
    def _run(work: Callable[[T], R], item: T) -> R:
        with on_behalf_of(urgency="batch"):
            return work(item)
