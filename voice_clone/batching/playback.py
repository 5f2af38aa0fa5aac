"""The playback clock of one listener."""

from __future__ import annotations


class Playback:
    """When a listener has heard all that was sent. It starts with the first chunk and pauses wherever one is late.

    Args:
        frame_seconds: how long a frame is heard.

    Attributes:
        until: when all is heard; None before the first chunk.
        underruns: chunks that came after playback had run dry.
        silence: seconds that the listener waited for them.
    """

    def __init__(self, frame_seconds: float) -> None:
        self.frame_seconds = frame_seconds
        self.until: float | None = None
        self.underruns = 0
        self.silence = 0.0

    def add(self, frames: int, now: float) -> None:
        """`frames` more were sent at `now`."""
        if frames and self.until is not None and now > self.until:
            self.underruns += 1
            self.silence += now - self.until
        self.until = max(now, now if self.until is None else self.until) + self.frame_seconds * frames
