"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT = 60.0  # seconds; far longer than anything that a test waits for takes
PAUSE = 0.01


def until(condition: Callable[[], object], seconds: float = WAIT) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: it does not hold in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s"
        time.sleep(PAUSE)
