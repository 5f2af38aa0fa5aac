"""The newest heartbeat of each stream stays open until the next request of the stream comes.

Where the talker's process dies, Triton 2.51 leaves its streams without an end. What code2wav holds open is then the
only way to their listeners: see `Model._lost`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

PATIENCE = 5.0  # seconds; a talker sends a heartbeat every 0.04 s, and one that was cancelled sends none


class Ends(Protocol):
    """What is needed of a `Responder`."""

    def end(self) -> None:
        """End the request without a response, if it has not ended yet."""


class Heartbeats:
    """The open heartbeats of all streams. Thread-safe.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[str, tuple[float, Ends]] = {}  # by stream, the oldest first
        self._lock = threading.Lock()
        self._closed = False

    def hold(self, stream_id: str, heartbeat: Ends) -> None:
        """Hold a stream's newest heartbeat, and end the one before; end those that nothing followed for long."""
        now = self._clock()
        with self._lock:
            ended = [self._held.pop(stream_id, None)]
            while self._held and now - next(iter(self._held.values()))[0] > PATIENCE:
                ended.append(self._held.pop(next(iter(self._held))))
            if self._closed:
                ended.append((now, heartbeat))
            else:
                self._held[stream_id] = now, heartbeat
        for each in filter(None, ended):
            each[1].end()

    def end(self, stream_id: str) -> None:
        """End a stream's heartbeat, if one is held: the stream goes on, or is over."""
        with self._lock:
            held = self._held.pop(stream_id, None)
        if held is not None:
            held[1].end()

    def close(self) -> None:
        """End all, and those that come."""
        with self._lock:
            held, self._closed = list(self._held.values()), True
            self._held.clear()
        for _, each in held:
            each.end()
