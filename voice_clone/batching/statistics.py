"""What an engine counts and times. It knows no metrics system: the owner of the engine makes the series.

Times of a stream are without those in which it waited for text.
A series costs a call to the server, so all are updated when a stream ends, never a frame.
"""

from __future__ import annotations

from collections.abc import Mapping

from voice_clone.batching.stream import Timing
from voice_clone.metrics import MakeSeries, SeriesForm, SeriesTable

# What a stream can end with, so that every series is there from the start, at 0.
REASONS = (
    *("stop", "length", "budget", "runaway", "text_timeout", "text_left"),
    *("cancelled", "deadline_exceeded", "overloaded", "invalid_argument", "internal"),
)
# From 1 ms to 65 s: a server with a GPU and one without must both fit.
BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0, 5120.0, 16384.0, 65536.0)
FACTORS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)


def _milliseconds(meaning: str) -> SeriesForm:
    return SeriesForm("histogram", f"milliseconds {meaning}", buckets=BUCKETS)


SERIES: Mapping[str, SeriesForm] = {
    "streams_total": SeriesForm(
        "counter",
        "ended streams, by finish reason or error",
        "reason",
        REASONS,
    ),
    "frames_total": SeriesForm("counter", "frames of ended streams"),
    "speech_seconds_total": SeriesForm("counter", "seconds of speech of ended streams"),
    "live_streams": SeriesForm("gauge", "streams in a slot"),
    "waiting_streams": SeriesForm("gauge", "streams that wait for a slot"),
    "short_streams": SeriesForm("gauge", "streams in a slot that wait for text"),
    "queue_ms": _milliseconds("until a stream has a slot"),
    "prefill_ms": _milliseconds("from the slot to the end of the prompt"),
    "first_frame_ms": _milliseconds("from the submission to the first frame"),
    "frame_ms": _milliseconds("of a frame, mean of a stream"),
    "real_time_factor": SeriesForm(
        "histogram", "time of a stream by the length of its speech; above 1 its listener waits", buckets=FACTORS
    ),
    "chunk_gap_ms": _milliseconds("of the longest gap between two chunks of a stream"),
    "text_wait_ms": _milliseconds("that a stream with an open text waited for it"),
}


class Statistics:
    """The series of one engine. For one thread: the engine's outbox."""

    def __init__(self, prefix: str, make: MakeSeries, frame_seconds: float) -> None:
        self._frame_seconds = frame_seconds
        self._series = SeriesTable(prefix, SERIES, make)
        self._shown: tuple[int, int, int] | None = None
        self.levels(0, 0, 0)

    def ended(self, reason: str, frames: int, timing: Timing) -> None:
        """A stream has ended with a finish reason, or with the slug of an error."""
        series = self._series
        if frames:
            series("frames_total").add(frames)
            series("speech_seconds_total").add(frames * self._frame_seconds)
            series("queue_ms").observe(timing.queue)
            series("prefill_ms").observe(timing.prefill)
            series("first_frame_ms").observe(timing.first_frame)
            series("frame_ms").observe(timing.generate / frames)
            series("chunk_gap_ms").observe(timing.gap)
            spent = 1e-3 * (timing.queue + timing.prefill + timing.generate)
            series("real_time_factor").observe(spent / (frames * self._frame_seconds))
        if timing.text is not None:
            series("text_wait_ms").observe(timing.text)
        # Last: it shows that the others are up to date.
        series("streams_total", reason if reason in REASONS else "internal").add()

    def levels(self, live: int, waiting: int, starved: int) -> None:
        """How full the engine is now; costs nothing where it has not changed."""
        if (live, waiting, starved) != self._shown:
            self._series("live_streams").set(live)
            self._series("waiting_streams").set(waiting)
            self._series("short_streams").set(starved)
            self._shown = live, waiting, starved
