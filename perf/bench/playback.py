"""Playback of a stream's chunks, to find its gaps."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Playback:
    """A player that starts with the first chunk and waits wherever the next one is late.

    `add` takes each chunk's arrival. Times are seconds on one clock.
    """

    began: float
    first: float | None = None
    last: float | None = None
    seconds: float = 0.0  # of audio
    gaps: list[float] = field(default_factory=list)  # between arrivals
    stalls: list[float] = field(default_factory=list)  # delays of the late chunks
    _silent_at: float = 0.0  # end of the audio that has arrived

    def add(self, now: float, seconds: float) -> None:
        """`seconds` of audio arrived at `now`."""
        if not seconds:
            return
        if self.first is None:
            self.first = self._silent_at = now
        else:
            self.gaps.append(now - (self.last or now))
            if now > self._silent_at:
                self.stalls.append(now - self._silent_at)
                self._silent_at = now
        self.last = now
        self.seconds += seconds
        self._silent_at += seconds

    @property
    def chunks(self) -> int:
        """Chunks with audio that arrived."""
        return 0 if self.first is None else 1 + len(self.gaps)

    @property
    def first_audio(self) -> float | None:
        """From the request to the first samples."""
        return None if self.first is None else self.first - self.began

    @property
    def real_time_factor(self) -> float | None:
        """Time of the whole stream over its audio; below 1 is faster than playback."""
        return (self.last - self.began) / self.seconds if self.last is not None and self.seconds else None
