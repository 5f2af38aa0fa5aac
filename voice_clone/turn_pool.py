"""A pool of threads on which callers take turns."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import TypeVar

from voice_clone.turns import PLAIN, Caller, Turns

T = TypeVar("T")

log = logging.getLogger(__name__)

MORE = 64

caller_now: ContextVar[Caller] = ContextVar("caller_now", default=PLAIN)
"""For whom this thread works."""


class PoolClosed(RuntimeError):
    """A pool that is shut down takes no work."""


class TurnPool:
    """Runs work on at most `threads` threads, and on one more for each caller for whom none works yet.

    The time of a piece of work is its cost. The callers of the pool's own work are `caller_now` while it runs.

    Args:
        threads: the usual ones; they are started when there is work.
        name: of the threads.
        more: threads beyond them, each for a caller that has none.
        after: called after each piece of work, when nothing of it is held any more.
    """

    def __init__(self, threads: int, name: str, more: int = MORE, after: Callable[[], object] = lambda: None) -> None:
        self._most, self._name, self._more, self._after = threads, name, more, after
        self._turns: Turns[_Work] = Turns()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._working = 0
        self._idle = 0  # threads that wait and were not woken
        self._closed = False

    def submit(self, caller: Caller, work: Callable[[], None]) -> None:
        """Run `work` in the caller's turn. What it raises goes to the log.

        Raises:
            PoolClosed: the pool is shut down.
        """
        with self._changed:
            if self._closed:
                raise PoolClosed("the pool is shut down")
            self._turns.put(_Work(caller, work), caller)
            if self._idle:
                self._wake()
            elif len(self._threads) < self._most + self._more and self._turns.may_take(self._may_run):
                thread = threading.Thread(target=self._run, name=f"{self._name}_{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def result(self, work: Callable[[], T]) -> T:
        """What `work` returns, or raises, in the turn of the caller for whom this thread works."""
        done: Future[T] = Future()

        def do() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self.submit(caller_now.get(), do)
        return done.result()

    def shutdown(self) -> None:
        """Do all work that waits, then end the threads."""
        with self._changed:
            self._closed = True
            self._wake()
        for thread in self._threads:
            thread.join()

    def _wake(self) -> None:
        """Let a thread look for work; at the end all, which may have none left."""
        if self._closed:
            self._changed.notify_all()
        elif self._idle:
            self._idle -= 1  # at once: the next work may come before that thread runs
            self._changed.notify()

    def _may_run(self, _work: _Work, running: int) -> bool:
        return self._working < self._most + (0 if running else self._more)

    def _next(self) -> _Work | None:
        """The next work, for which this thread waits. None: the pool is shut down."""
        while (work := self._turns.take(self._may_run)) is None:
            if self._closed and not len(self._turns):
                return None
            self._idle += 1
            self._changed.wait()
        self._working += 1
        return work

    def _run(self) -> None:
        while True:
            with self._changed:
                work = self._next()
                if work is None:
                    return
            began = time.monotonic()
            caller_now.set(work.caller)
            try:
                work.do()
            except BaseException:
                log.exception("work of a pool failed")
            finally:
                with self._changed:
                    self._turns.charge(work, time.monotonic() - began)
                    self._turns.leave(work)
                    self._working -= 1
                    self._wake()
            del work  # an idle thread must not hold what the work holds
            self._after()


class _Work:
    """A piece of work, and for whom it is."""

    def __init__(self, caller: Caller, do: Callable[[], None]) -> None:
        self.caller, self.do = caller, do
