"""The newest request of each stream stays open until the next one comes.

Where the talker's process dies, Triton 2.51 leaves its streams without an end. What code2wav holds open is then the
only way to their listeners: see `Model._lost`.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

PATIENCE = 5.0  # seconds; a talker sends something every 0.04 s


class Ends(Protocol):
    """What is needed of a `Responder`."""

    def end(self) -> None:
        """End the request without a response, if it has not ended yet."""


class OpenRequests:
    """The open request of each stream that is not over. Thread-safe.

    Args:
        patience: seconds after which one ends though nothing follows it.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._held: dict[str, tuple[float, Ends]] = {}  # by stream, the oldest first
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="open requests", daemon=True)
        self._thread.start()

    def hold(self, stream_id: str, request: Ends) -> None:
        """Hold a stream's newest request, and end the one before."""
        with self._lock:
            before = self._held.pop(stream_id, None)
            self._held[stream_id] = time.monotonic(), request
        if before is not None:
            before[1].end()

    def hold_unless_newer(self, stream_id: str, request: Ends) -> None:
        """As `hold` for a request whose work took a while; one that came meanwhile counts as newer."""
        with self._lock:
            newer = stream_id in self._held
            if not newer:
                self._held[stream_id] = time.monotonic(), request
        if newer:
            request.end()

    def end(self, stream_id: str) -> None:
        """End a stream's request, if one is held: the stream is over."""
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
