"""Listeners who are expected: batch work waits for them.

A listener is expected from the moment at which the prompt of a stream is begun, before the talker knows of it, until
the first audio has had the time to reach the caller. Then all of the way has the cores for itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

NOTICE = 0.1  # seconds for which batch work waits for a stream whose prompt has been begun
ARRIVAL = 0.02  # seconds that the first audio takes to the caller


class Expected:
    """The streams of listeners who are expected, each until some time; for one thread.

    Args:
        news: returns the ids of the streams that were announced since its last call. Each is expected for `NOTICE`.
        clock: seconds, monotonic.
    """

    def __init__(self, news: Callable[[], Iterable[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self._news = news
        self._clock = clock
        self._until: dict[str, float] = {}  # by stream

    def add(self, stream_id: str, seconds: float) -> None:
        """A stream is expected for so long from now on."""
        now = self._clock()
        self._until = {stream: until for stream, until in self._until.items() if until > now}
        self._until[stream_id] = now + seconds

    def drop(self, stream_id: str) -> bool:
        """A stream is not expected any more; returns whether it was."""
        self._look()
        return self._until.pop(stream_id, 0.0) > self._clock()

    def seconds(self) -> float:
        """For how long streams are expected; 0.0: there is none."""
        self._look()
        return max(0.0, max(self._until.values(), default=0.0) - self._clock())

    def _look(self) -> None:
        for stream_id in self._news():
            self.add(stream_id, NOTICE)
