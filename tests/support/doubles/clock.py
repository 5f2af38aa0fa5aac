"""A clock for code that takes one as an argument, and one for asyncio's timers."""

from __future__ import annotations

import asyncio
import time

import pytest


class Clock:
    """Seconds that pass only when a test adds them to `now`."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class LoopClock:
    """The clock of asyncio's event loops, set forward by `ahead` seconds: what should last long lasts no time.

    Until the end of the test, whose `monkeypatch` this takes.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: time.monotonic() + self.ahead)
