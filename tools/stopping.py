"""Ctrl-C and SIGTERM that end a tool, whatever the code in between makes of them.

What a signal raises in the midst of a compiled library's work may come out as an error of that library, or not at all.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


class Stopped(BaseException):
    """A signal asked the tool to end. No `Exception`, so that no `except Exception` swallows it."""


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Raise `Stopped` when one of the signals comes, and in place of whatever else is raised from then on.

    Yields: a function that raises it if one has come already, to be called before what cannot be taken back.
    """
    came = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise Stopped

    def check() -> None:
        if came:
            raise Stopped

    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield check
    except BaseException as error:
        if came and not isinstance(error, Stopped):
            raise Stopped from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
