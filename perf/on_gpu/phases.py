"""The phases of `perf/gpu`: each is printed when it begins, if there is time; the result file has what is done."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from perf.bench import report

BARE = ("engines", "cpu", "decoder")  # they need torch and this package, but no server
SERVER = ("voices", "load", "leaving", "restart")  # of one server
PHASES = (*BARE, *SERVER, "codes")


class TimeUp(KeyboardInterrupt):
    """The time that was given is over. No `Exception`, so that no `except` of those swallows it."""


class Phases:
    """Of a measurement that may be cut short; what it leaves out it puts into `found["left_out"]` with the reason.

    Args:
        path: of the result file; None: there is none.
        found: what goes into it. The measurement fills it.
        within: seconds, after which no phase begins, and with `ended_in_time` none goes on; None: no end.
    """

    def __init__(self, path: Path | None, found: dict[str, Any], within: float | None) -> None:
        self._path = path
        self._found = found
        self._left_out: dict[str, str] = found.setdefault("left_out", {})
        self._within = within
        self._began = time.perf_counter()
        self._phase = ""

    @contextlib.contextmanager
    def ended_in_time(self) -> Iterator[None]:
        """The phase that is under way when the time is over ends, too, and is left out; without a time, none does."""
        if self._within is None:
            yield
            return

        def end(number: int, frame: FrameType | None) -> None:
            raise TimeUp

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, self._within)
        try:
            yield
        except TimeUp:
            self.leave_out(self._phase, f"it was under way when {self._within:g} s were over; what it had is here")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

    def begin(self, phase: str) -> None:
        """Write what is known, and print the phase."""
        self.keep()
        self._phase = phase
        print(f"[{time.perf_counter() - self._began:4.0f} s] {phase}", file=sys.stderr, flush=True)

    def keep(self) -> None:
        """Write what is known."""
        report.write(self._path, self._found)

    def leave_out(self, what: str, why: str) -> None:
        """Note what is not measured."""
        self._left_out[what] = why
        self.keep()

    def begins(self, phase: str) -> bool:
        """Begin a phase, if there is time. A phase that has begun is not stopped."""
        spent = time.perf_counter() - self._began
        if self._within is not None and spent >= self._within:
            self.leave_out(phase, f"{spent:.0f} s had passed; {self._within:g} were given")
            return False
        self.begin(phase)
        return True
