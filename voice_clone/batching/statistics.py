"""What an engine counts and times. It knows no metrics system: the owner of the engine makes the series.

    <prefix>streams_total{reason}   counter    ended streams: a finish reason, or the slug of the error; `budget`,
                                               `runaway` and `text_left` are speeches that missed their end
    <prefix>frames_total            counter    frames of ended streams
    <prefix>speech_seconds_total    counter    seconds of speech of ended streams
    <prefix>live_streams            gauge      streams in a slot
    <prefix>waiting_streams         gauge      streams that wait for a slot
    <prefix>short_streams           gauge      streams in a slot that wait for text
    <prefix>queue_ms                histogram  wait for a slot
    <prefix>prefill_ms              histogram  from the slot to the end of the prompt
    <prefix>first_frame_ms          histogram  from the submission to the first frame
    <prefix>frame_ms                histogram  mean of a stream's frames
    <prefix>real_time_factor        histogram  from the submission to the last frame, by the length of the speech
    <prefix>chunk_gap_ms            histogram  the longest gap between two chunks of a stream
    <prefix>text_wait_ms            histogram  how long a stream with an open text waited for it

Times of a stream are without those in which it waited for text.
A series costs a call to the server, so all are updated when a stream ends, never a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from voice_clone.batching.stream import Timing

# What a stream can end with, so that every series is there from the start, at 0.
REASONS = (
    *("stop", "length", "budget", "runaway", "text_timeout", "text_left"),
    *("cancelled", "deadline_exceeded", "overloaded", "invalid_argument", "internal"),
)
# From 1 ms to 65 s: a server with a GPU and one without must both fit.
BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0, 5120.0, 16384.0, 65536.0)
FACTORS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)


class Series(Protocol):
    """One series of a metrics system."""

    def add(self, amount: float = 1.0) -> None:
        """Increase a counter."""

    def set(self, value: float) -> None:
        """Set a gauge."""

    def observe(self, value: float) -> None:
        """Add an observation to a histogram."""


MakeSeries = Callable[..., Series]
"""(name, description, kind, labels, buckets) -> a series; kind: `counter`, `gauge` or `histogram`."""


class Statistics:
    """The series of one engine. For one thread: the engine's outbox.

    Args:
        prefix: of the series' names.
        make: makes a series.
        frame_seconds: how long a frame is heard.
    """

    def __init__(self, prefix: str, make: MakeSeries, frame_seconds: float) -> None:
        self._frame_seconds = frame_seconds

        def histogram(name: str, description: str) -> Series:
            return make(f"{prefix}{name}", description, "histogram", None, BUCKETS)

        total = f"{prefix}streams_total"
        self._reasons = {
            reason: make(total, "ended streams by reason", "counter", {"reason": reason}) for reason in REASONS
        }
        self._frames = make(f"{prefix}frames_total", "frames of ended streams", "counter")
        self._seconds = make(f"{prefix}speech_seconds_total", "seconds of speech of ended streams", "counter")
        self._live = make(f"{prefix}live_streams", "streams in a slot", "gauge")
        self._waiting = make(f"{prefix}waiting_streams", "streams that wait for a slot", "gauge")
        self._queue = histogram("queue_ms", "milliseconds until a stream has a slot")
        self._prefill = histogram("prefill_ms", "milliseconds from the slot to the end of the prompt")
        self._first = histogram("first_frame_ms", "milliseconds from the submission to the first frame")
        self._frame = histogram("frame_ms", "milliseconds of a frame, mean of a stream")
        self._gap = histogram("chunk_gap_ms", "milliseconds of the longest gap between two chunks of a stream")
        factor = "time of a stream by the length of its speech; above 1 its listener waits"
        self._factor = make(f"{prefix}real_time_factor", factor, "histogram", None, FACTORS)
        self._starved = make(f"{prefix}short_streams", "streams in a slot that wait for text", "gauge")
        self._text = histogram("text_wait_ms", "milliseconds that a stream with an open text waited for it")
        self._shown: tuple[int, int, int] | None = None
        self.levels(0, 0, 0)

    def ended(self, reason: str, frames: int, timing: Timing) -> None:
        """A stream has ended with a finish reason, or with the slug of an error."""
        if frames:
            self._frames.add(frames)
            self._seconds.add(frames * self._frame_seconds)
            self._queue.observe(timing.queue)
            self._prefill.observe(timing.prefill)
            self._first.observe(timing.first_frame)
            self._frame.observe(timing.generate / frames)
            self._gap.observe(timing.gap)
            spent = 1e-3 * (timing.queue + timing.prefill + timing.generate)
            self._factor.observe(spent / (frames * self._frame_seconds))
        if timing.text is not None:
            self._text.observe(timing.text)
        self._reasons.get(reason, self._reasons["internal"]).add()  # last: it shows that the others are up to date

    def levels(self, live: int, waiting: int, starved: int) -> None:
        """How full the engine is now; costs nothing where it has not changed."""
        if (live, waiting, starved) != self._shown:
            self._live.set(live)
            self._waiting.set(waiting)
            self._starved.set(starved)
            self._shown = live, waiting, starved
