"""How often what ends by itself is started again."""

from __future__ import annotations

import signal
import sys
import time
from collections import deque

WITHIN = 600.0  # seconds
ASKED = (0, -signal.SIGTERM)  # statuses of a process that somebody has asked to end


class Restarts:
    """Counts the ends of a process, and says each of them.

    Args:
        name: of the process, for a person.
        most: how many ends in `WITHIN` are too few to give up.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._ends: deque[float] = deque()

    def again(self, status: int) -> bool:
        """Whether the process, which has ended by itself with this status, is to be started again."""
        now = time.monotonic()
        self._ends.append(now)
        while now - self._ends[0] > WITHIN:
            self._ends.popleft()
        ended = f"{self._name} has ended by itself, with status {status}"
        gives_up = status in ASKED or len(self._ends) > self._most
        what = "see the log above." if gives_up else f"starting it again ({len(self._ends)} of {self._most}) ..."
        print(f"{ended}; {what}", file=sys.stderr, flush=True)
        return not gives_up
