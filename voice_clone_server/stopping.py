"""Ctrl-C, SIGTERM and a terminal that closes: each ends a tool in order, with one line and nothing left half done.

If a signal handler raises within a compiled library, the library may raise an error of its own instead, or none.
What a tool has started ends with it even after SIGKILL: see voice_clone_server/guard.py.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asked the tool to end. No `Exception`, so that no `except` of those swallows it."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number
        """The exit status, as shells have it."""


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Raise `Stopped` when one of the signals comes, and instead of any other exception after that.

    Yields: a function that raises it if a signal has come already, to be called before a step that cannot be undone.
    """
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise Stopped(number)

    def check() -> None:
        if came:
            raise Stopped(came[0])

    numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield check
    except BaseException as error:
        if came and not isinstance(error, Stopped):
            raise Stopped(came[0]) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """From now on: for an end that is under way and takes a bounded time."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
