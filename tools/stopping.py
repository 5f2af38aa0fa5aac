"""Ctrl-C and SIGTERM that end a tool, even where a library changes or swallows the exception.

If a signal handler raises within a compiled library, the library may raise an error of its own instead, or none.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


class Stopped(BaseException):
    """A signal asked the tool to end. Not an `Exception`, so that no `except Exception` swallows it."""


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Raise `Stopped` when one of the signals comes, and instead of any other exception after that.

    Yields: a function that raises it if a signal has come already, to be called before a step that cannot be undone.
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
