"""How much may run at once, how much a caller may speak in a minute, how slow a body or message may be."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from voice_clone_client import Overloaded
from voice_clone_client.callers import caller_here

from ..places import TooManyWait
from .errors import HTTPFailure, limit_reached

_WAIT = 1  # seconds after which a place may be free
GRACE_SECONDS = 20.0
LEAST_SPEED = 1000
"""Bytes a second of a body or message, after the first `GRACE_SECONDS`."""


class Gate:
    """Counts what runs in the gateway. More than `most` are refused, but not those of a caller that has less than its
    share of them.
    """

    def __init__(self, most: int, what: str = "speeches") -> None:
        self._most = most
        self._what = what
        self._of_caller: Counter[str] = Counter()

    @property
    def live(self) -> int:
        return sum(self._of_caller.values())

    @contextmanager
    def pass_through(self) -> Iterator[None]:
        """Occupy a place of this task's caller during the `with` block.

        Raises:
            Overloaded: all places are occupied.
        """
        caller = caller_here()
        share = max(1, self._most // len({*self._of_caller, caller}))
        if self.live >= self._most and self._of_caller[caller] >= share:
            raise Overloaded(f"{self._most} {self._what} run already, the maximum of this gateway; try again later")
        self._of_caller[caller] += 1
        try:
            yield
        finally:
            self._of_caller[caller] -= 1
            self._of_caller += Counter()  # without those that have none


class KeyGate:
    """Counts the speeches that run for one caller.

    Args:
        most: how many may run; None for any number.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._live = [0]

    def join(self, other: KeyGate) -> None:
        """Count together with another key of the same caller."""
        self._live = other._live

    @property
    def live(self) -> int:
        return self._live[0]

    @contextmanager
    def pass_through(self, wanted: int = 1) -> Iterator[int]:
        """Occupy at most `wanted` places during the `with` block, and at least one. Gives their number.

        Raises:
            HTTPFailure: 429, all places are occupied.
        """
        free = wanted if self._most is None else min(wanted, self._most - self.live)
        if free < 1:
            message = f"{self._most} speeches of this key run already, its maximum; wait until one has ended"
            raise limit_reached(message, "too_many_speeches", _WAIT)
        self._live[0] += free
        try:
            yield free
        finally:
            self._live[0] -= free


class Exports:
    """One export for each caller until it is sent."""

    def __init__(self) -> None:
        self._callers: set[str] = set()

    @contextmanager
    def of(self, caller: str) -> Iterator[None]:
        """The export of a caller.

        Raises:
            TooManyWait: another one of it is under way.
        """
        if caller in self._callers:
            raise TooManyWait("exports")
        self._callers.add(caller)
        try:
            yield
        finally:
            self._callers.remove(caller)


class Bucket:
    """Fills up evenly, and can be overdrawn."""

    def __init__(self, rate: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._most = most
        self._clock = clock
        self._left = most
        self._at = clock()

    def take(self, count: float) -> float:
        """Take so much out of it; returns the seconds until it is not overdrawn."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._rate) - count
        self._at = now
        return max(0.0, -self._left / self._rate)


class Characters:
    """The characters that one caller may still speak: those of a minute."""

    def __init__(self, a_minute: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = a_minute
        self._bucket = Bucket((a_minute or 0) / 60 or 1, a_minute or 0, clock)

    def join(self, other: Characters) -> None:
        """Count together with another key of the same caller, if that has the same limit."""
        if self._most == other._most:
            self._bucket = other._bucket

    def check(self, count: int, what: str = "the text") -> None:
        """See whether so many characters can ever be taken at once.

        Args:
            what: has them.

        Raises:
            HTTPFailure: 400, they cannot.
        """
        if self._most is not None and count > self._most:
            message = f"{what} has {count} characters; this key may speak {self._most} a minute, so send less at once"
            raise HTTPFailure(400, message, "invalid_argument", param="input")

    def take(self, count: int) -> None:
        """Take these characters out of the bucket.

        Raises:
            HTTPFailure: 429, so many are not there yet; 400, see `check`.
        """
        self.check(count)
        if self._most is None:
            return
        wait = math.ceil(self._bucket.take(count))
        if wait:
            self._bucket.take(-count)
            message = f"this key may speak {self._most} characters a minute; try again in {wait} s"
            raise limit_reached(message, "too_many_characters", wait)


def seconds_for(count: int) -> float:
    """The seconds in which so many bytes of a body or message must have arrived."""
    return GRACE_SECONDS + count / LEAST_SPEED
