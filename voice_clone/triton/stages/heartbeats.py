"""The newest heartbeat of each stream stays open until the next request of the stream comes.

Where the talker's process dies, Triton 2.51 leaves its streams without an end. What code2wav holds open is then the
only way to their listeners: see `Model._lost`.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

PATIENCE = 5.0  # seconds; a talker sends a heartbeat every 0.04 s, and one that was cancelled sends none


class Ends(Protocol):
    """What is needed of a `Responder`."""

    def end(self) -> None:
        """End the request without a response, if it has not ended yet."""


class Heartbeats:
    """The open heartbeats of all streams. Thread-safe.

    Args:
        patience: seconds after which one is answered though nothing follows it.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._held: dict[str, tuple[float, Ends]] = {}  # by stream, the oldest first
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self._thread.start()

    def hold(self, stream_id: str, heartbeat: Ends) -> None:
        """Hold a stream's newest heartbeat, and end the one before."""
        with self._lock:
            before = self._held.pop(stream_id, None)
            self._held[stream_id] = time.monotonic(), heartbeat
        if before is not None:
            before[1].end()

    def end(self, stream_id: str) -> None:
        """End a stream's heartbeat, if one is held: the stream goes on, or is over."""
        with self._lock:
            held = self._held.pop(stream_id, None)
        if held is not None:
            held[1].end()

    def close(self) -> None:
        """End all."""
        self._closing.set()
        self._thread.join()
        self._end_until(time.monotonic())

    def _run(self) -> None:
        while not self._closing.wait(self._patience / 2):
            self._end_until(time.monotonic() - self._patience)

    def _end_until(self, when: float) -> None:
        ended = []
        with self._lock:
            while self._held and next(iter(self._held.values()))[0] <= when:
                ended.append(self._held.pop(next(iter(self._held)))[1])
        for each in ended:
            each.end()
