"""The playback clock of one listener."""

from __future__ import annotations


class Playback:
    """When a listener has heard all that was sent. It starts with the first chunk and pauses wherever one is late.

    Args:
        unit_seconds: how long one of what is counted, frames or samples, is heard.

    Attributes:
        until: when all is heard; None before the first chunk.
        underruns: chunks that came after playback had run dry.
        silence: seconds that the listener waited for them.
    """

    def __init__(self, unit_seconds: float) -> None:
        self.unit_seconds = unit_seconds
        self.until: float | None = None
        self.underruns = 0
        self.silence = 0.0

    def add(self, count: int, now: float) -> None:
        """`count` more were sent at `now`."""
        if count and self.until is not None and now > self.until:
            self.underruns += 1
            self.silence += now - self.until
        self.until = max(now, now if self.until is None else self.until) + self.unit_seconds * count
