"""What code2wav counts; the talker's label is there, too."""

from __future__ import annotations

from collections.abc import Mapping

from voice_clone.metrics import SeriesForm

SERIES: Mapping[str, SeriesForm] = {
    "streams": SeriesForm("gauge", "open streams"),
    "state_bytes": SeriesForm(
        "gauge", "decoder states in memory, of streams or after references", "of", ("streams", "primed")
    ),
    "primed_total": SeriesForm(
        "counter", "streams with a reference, by whether its state was known", "result", ("hit", "miss")
    ),
    "streams_ended_total": SeriesForm(
        "counter", "ended streams", "reason", ("finished", "cancelled", "failed", "idle")
    ),
    "marks_total": SeriesForm(
        "counter",
        "finished streams that were to be marked as synthetic",
        "result",
        ("marked", "failed"),
    ),
    "underruns_total": SeriesForm("counter", "chunks that came after the listener had run out of audio"),
    "underrun_ms": SeriesForm(
        "histogram",
        "milliseconds that the listener of a stream waited for such chunks, in all",
        buckets=(0, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000),
    ),
    "frame_ms": SeriesForm(
        "histogram", "milliseconds of decoding a frame", buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
    ),
    "batch_size": SeriesForm("histogram", "chunks decoded together", buckets=(1, 2, 4, 8, 16, 32, 64)),
}
