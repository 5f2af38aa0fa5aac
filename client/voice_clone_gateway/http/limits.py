"""How much may run at once, and how much a key may speak in a minute."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from voice_clone_client import Overloaded

from .errors import HTTPFailure, limit_reached

_WAIT = 1  # seconds after which a place may be free


class Gate:
    """Counts the running speeches of the gateway, and refuses more than `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.live = 0

    @contextmanager
    def pass_through(self) -> Iterator[None]:
        """Occupy a place during the `with` block.

        Raises:
            Overloaded: all places are occupied.
        """
        if self.live >= self._most:
            raise Overloaded(f"{self._most} speeches run already, the maximum of this gateway; try again later")
        self.live += 1
        try:
            yield
        finally:
            self.live -= 1


class KeyGate:
    """Counts what runs for one key: its speeches, or its uploads and preparations of voices and detections.

    Args:
        most: how many may run; None for any number.
        what: they are.
        code: of the error when there are too many.
    """

    def __init__(self, most: int | None = None, what: str = "speeches", code: str = "too_many_speeches") -> None:
        self._most = most
        self._what = what
        self._code = code
        self.live = 0

    @contextmanager
    def pass_through(self, wanted: int = 1) -> Iterator[int]:
        """Occupy at most `wanted` places during the `with` block, and at least one. Gives their number.

        Raises:
            HTTPFailure: 429, all places are occupied.
        """
        free = wanted if self._most is None else min(wanted, self._most - self.live)
        if free < 1:
            message = f"{self._most} {self._what} of this key run already, its maximum; wait until one has ended"
            raise limit_reached(message, self._code, _WAIT)
        self.live += free
        try:
            yield free
        finally:
            self.live -= free


class PreparationGates:
    """The gates of the uploads, imports and preparations of voices and of detections: one for each key.

    Args:
        most: how many of a key may run at once. They take the processor from all speeches.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_key: dict[Hashable, KeyGate] = {}

    def of(self, key: Hashable) -> KeyGate:
        """The gate of a key."""
        gate = KeyGate(self._most, "uploads, preparations and detections", "too_many_preparations")
        return self._of_key.setdefault(key, gate)


class Characters:
    """The characters that one key may still speak: a bucket that holds those of a minute, and fills up evenly.

    Args:
        a_minute: how many; None for any number.
        clock: seconds.
    """

    def __init__(self, a_minute: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = a_minute
        self._clock = clock
        self._left = float(a_minute or 0)
        self._at = clock()

    def take(self, count: int) -> None:
        """Take these characters out of the bucket.

        Raises:
            HTTPFailure: 429, so many are not there yet; 400, so many never will be.
        """
        if self._most is None:
            return
        if count > self._most:
            message = f"the text has {count} characters; this key may speak {self._most} a minute, so send less at once"
            raise HTTPFailure(400, message, "invalid_argument", param="input")
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._most / 60)
        self._at = now
        if count > self._left:
            wait = math.ceil((count - self._left) * 60 / self._most)
            message = f"this key may speak {self._most} characters a minute; try again in {wait} s"
            raise limit_reached(message, "too_many_characters", wait)
        self._left -= count
