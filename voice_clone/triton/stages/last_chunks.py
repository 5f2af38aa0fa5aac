"""Streams with a last chunk that is still on its way to the listener. A server that stops waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE = 5.0  # seconds; a last chunk without an answer by then went to a caller of the talker itself, or is lost


class LastChunks:
    """Counts last chunks that were sent and not yet answered. Thread-safe.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent: dict[str, float] = {}  # by stream, the oldest first
        self._changed = threading.Condition()

    def sent(self, stream_id: str) -> None:
        """A stream's last chunk is about to be sent."""
        with self._changed:
            self._forget()
            self._sent.pop(stream_id, None)
            self._sent[stream_id] = self._clock()

    def answered(self, stream_id: str) -> None:
        """The listener has it, or has left."""
        with self._changed:
            self._sent.pop(stream_id, None)
            self._changed.notify_all()

    def wait(self) -> bool:
        """Wait until all have an answer; False if some have none in time."""
        with self._changed:
            while self._sent:
                newest = next(reversed(self._sent.values()))
                if not self._changed.wait_for(lambda: not self._sent, newest + PATIENCE - self._clock()):
                    return False
        return True

    def _forget(self) -> None:
        """Chunks that never get an answer must not fill the memory."""
        while self._sent and self._clock() - next(iter(self._sent.values())) > PATIENCE:
            del self._sent[next(iter(self._sent))]
