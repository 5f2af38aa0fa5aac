"""What the decoding thread reports, and to whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from voice_clone.batching.stream import Playback

Ending = Literal["finished", "cancelled", "failed", "idle"]


@dataclass
class Report:
    """What happened since the last report, and the levels now."""

    open_streams: int
    stream_bytes: int
    primed_bytes: int
    batch: int = 0  # chunks decoded together
    frames: int = 0  # of all of them
    decode_ms: float = 0.0  # of the batch
    primed_hits: int = 0
    primed_misses: int = 0
    endings: list[Ending] = field(default_factory=list)  # of streams
    heard: list[Playback] = field(default_factory=list)  # of those of them that a listener has heard


class Observer(Protocol):
    """Receives reports. Its methods must neither wait nor raise."""

    def lost(self, stream_id: str) -> None:
        """A stream ended here before its final chunk: its talker should stop. Called from any thread."""

    def answered(self, stream_id: str) -> None:
        """A stream's final chunk has been answered. Called from the worker's thread."""

    def report(self, report: Report) -> None:
        """After each batch, and when streams ended without one. Called from the worker's thread."""
