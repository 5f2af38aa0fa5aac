"""The playback clock of one listener."""

from __future__ import annotations


class Playback:
    """When a listener has heard all that was sent. It starts with the first chunk and pauses wherever one is late.

    Args:
        frame_seconds: how long a frame is heard.
    """

    def __init__(self, frame_seconds: float) -> None:
        self.frame_seconds = frame_seconds
        self.until: float | None = None

    def add(self, frames: int, now: float) -> None:
        """`frames` more were sent at `now`."""
        self.until = max(now, now if self.until is None else self.until) + self.frame_seconds * frames
