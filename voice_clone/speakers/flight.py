"""Single flight: work that several callers want at once is done once, and every caller gets its result.

Work runs on a small pool of daemon threads, never on the caller's thread: a caller can stop waiting for work that
hangs. Callers take turns, and work for which one waits goes before background work. Work that belongs to no speaker
leaves the queue with the last caller that asked for it, so that clips of callers that have left cannot pile up. A
flight is over when it has run longer than its timeout, or when it is abandoned because its speaker was deleted or
replaced. Its thread may still run: the work must check `flight.over` before it changes anything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from contextvars import Context, copy_context
from dataclasses import replace
from typing import Generic, TypeVar

from voice_clone.errors import DeadlineExceeded, Internal, Overloaded, VoiceCloneError
from voice_clone.turn_pool import caller_now
from voice_clone.turns import Turns

NO_OWNER = ""  # of flights that belong to no speaker; no speaker's key is empty
log = logging.getLogger(__name__)
T = TypeVar("T")


class Superseded(Exception):
    """The speaker was deleted or replaced meanwhile; find it again."""


class Flight(Generic[T]):
    """Work under way. It is `over` once it has a result or an error, was abandoned, or ran too long."""

    def __init__(self, owner: str, key: Hashable, work: Callable[[Flight[T]], T], context: Context) -> None:
        self.owner = owner
        self.key = key
        self.work = work
        self.context = context  # of the request that it is for
        self.callers = 0  # of `Flights.ask`
        self.lasting = False  # whether it was begun without a caller, too
        self.deadline: float | None = None  # on the monotonic clock; None while it has not begun
        self.result: T | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    @property
    def running(self) -> bool:
        """Whether its work has begun and is not over."""
        return self.deadline is not None and not self.over

    @property
    def over(self) -> bool:
        """Whether its work must change nothing any more."""
        return self.done.is_set() or (self.deadline is not None and time.monotonic() >= self.deadline)

    def remaining(self) -> float:
        """Seconds until its timeout; infinite while it has not begun."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()


class Flights(Generic[T]):
    """The flights of one process.

    Args:
        workers: the number of threads.
        timeout: seconds that a flight may run.
    """

    def __init__(self, workers: int, timeout: float) -> None:
        self._workers = workers
        self.timeout = timeout
        self._threads = 0
        self._idle = 0
        self._flights: dict[str, dict[Hashable, Flight[T]]] = {}  # by owner
        self._turns: Turns[Flight[T]] = Turns()  # those that wait are the queue
        self._wake = threading.Condition()
        self._closed = False

    def start(self, owner: str, key: Hashable, work: Callable[[Flight[T]], T], background: bool = False) -> Flight[T]:
        """The flight of `key` that is under way, else a new one that calls `work(flight)`.

        Raises:
            Overloaded: the server is stopping.
        """
        with self._wake:
            if self._closed:
                raise Overloaded("the speaker cache is closed; the server is stopping")
            flight = self._flights.get(owner, {}).get(key)
            if flight is None or flight.over:
                flight = Flight(owner, key, work, copy_context())
                self._flights.setdefault(owner, {})[key] = flight
                self._enqueue(flight, background)
            elif not background and flight.deadline is None and not flight.done.is_set():
                self._turns.leave(flight)
                self._turns.put(flight, caller_now.get())
            flight.lasting |= background
            return flight

    def ask(self, key: Hashable, work: Callable[[Flight[T]], T], timeout: float) -> T:
        """The result of work that belongs to no speaker. Callers that ask at the same time share it.

        Raises: as `start` and `wait`.
        """
        with self._wake:
            flight = self.start(NO_OWNER, key, work)
            flight.callers += 1
        try:
            return self.wait(flight, timeout)
        finally:
            with self._wake:
                flight.callers -= 1
                unwanted = flight.callers == 0 and not flight.lasting
                if unwanted and flight.deadline is None and not flight.done.is_set():
                    self._turns.leave(flight)
                    self._land(flight)
                    _settle(flight, error=DeadlineExceeded("the voice was not ready in time; try again later"))

    def wait(self, flight: Flight[T], timeout: float) -> T:
        """The result of a flight.

        Raises:
            Superseded: it was abandoned.
            DeadlineExceeded: not done within `timeout` seconds, or it ran too long.
            VoiceCloneError: raised by its work; Internal for any other exception.
        """
        until = time.monotonic() + timeout
        while not flight.done.is_set():
            left = min(until - time.monotonic(), flight.remaining())
            if left <= 0.0:
                raise DeadlineExceeded("the voice was not ready in time; try again later")
            flight.done.wait(min(left, self.timeout))  # it may begin meanwhile and get a deadline
        if flight.error is not None:
            raise _again(flight.error)
        return flight.result  # type: ignore[return-value]  # done without an error: there is a result

    def of(self, owner: str) -> list[Flight[T]]:
        """The flights of one owner that are not over."""
        with self._wake:
            return [flight for flight in self._flights.get(owner, {}).values() if not flight.over]

    def abandon(self, owner: str) -> None:
        """End all flights of an owner: callers that wait get Superseded at once."""
        with self._wake:
            for flight in self._flights.pop(owner, {}).values():
                if flight.deadline is None:
                    self._turns.leave(flight)
                _settle(flight, error=Superseded())

    def __len__(self) -> int:
        with self._wake:
            return sum(map(len, self._flights.values()))

    def close(self) -> None:
        """End all flights; busy threads finish on their own."""
        with self._wake:
            self._closed = True
            for owner in tuple(self._flights):
                for flight in self._flights.pop(owner).values():
                    _settle(flight, error=Overloaded("the speaker cache is closed; the server is stopping"))
            self._wake.notify_all()

    def _enqueue(self, flight: Flight[T], background: bool) -> None:
        caller = caller_now.get()
        self._turns.put(flight, replace(caller, urgency="batch") if background else caller)
        if self._idle < len(self._turns) and self._threads < self._workers:
            self._threads += 1
            threading.Thread(target=self._run, name=f"extraction-{self._threads}", daemon=True).start()
        self._wake.notify()

    def _may_fly(self, _flight: Flight[T], running: int) -> bool:
        """Callers share the threads: none has all of them while another one waits."""
        return running < max(1, self._workers // self._turns.active)

    def _next(self) -> Flight[T] | None:
        """The next flight, for which this thread waits. None: the flights are closed."""
        while not self._closed:
            flight = self._turns.take(self._may_fly)
            if flight is not None:
                return flight
            self._idle += 1
            self._wake.wait()
            self._idle -= 1
        return None

    def _run(self) -> None:
        while True:
            with self._wake:
                flight = self._next()
                if flight is None:
                    return
                flight.deadline = time.monotonic() + self.timeout
            began = time.monotonic()
            flight.context.run(self._fly, flight)
            with self._wake:
                self._turns.charge(flight, time.monotonic() - began)
                self._turns.leave(flight)
                self._wake.notify_all()
            del flight  # an idle thread must not hold what the work holds

    def _fly(self, flight: Flight[T]) -> None:
        try:
            result, error = flight.work(flight), None
        except BaseException as raised:
            result, error = None, raised
            if not isinstance(raised, (VoiceCloneError, Superseded)):
                log.error("extracting a voice failed", exc_info=raised)
        with self._wake:
            self._land(flight)
            if not flight.done.is_set():
                _settle(flight, result, error)

    def _land(self, flight: Flight[T]) -> None:
        of_owner = self._flights.get(flight.owner, {})
        if of_owner.get(flight.key) is flight:
            del of_owner[flight.key]
            if not of_owner:
                del self._flights[flight.owner]


def _settle(flight: Flight[T], result: T | None = None, error: BaseException | None = None) -> None:
    flight.result, flight.error = result, error
    flight.done.set()


def _again(error: BaseException) -> BaseException:
    """A fresh exception for each caller, so that their tracebacks do not pile up on one object."""
    if isinstance(error, VoiceCloneError):
        return type(error)(*error.args)
    return error if isinstance(error, Superseded) else Internal("the voice could not be extracted")
