"""The counters of the cache. They only grow."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

from voice_clone.metrics import SeriesForm
from voice_clone.speakers.lru import POOLS

COUNTERS = ("hits", "misses", "restores", "extractions", "extraction_failures", "uploads", "deletes")
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # upper bounds, seconds
SERIES: Mapping[str, SeriesForm] = {
    "hits_total": SeriesForm("counter", "voices that were in memory"),
    "misses_total": SeriesForm("counter", "voices whose artifacts had to be made"),
    "restores_total": SeriesForm("counter", "voices that were read from their files"),
    "extractions_total": SeriesForm("counter", "extractions of artifacts from clips"),
    "extraction_failures_total": SeriesForm("counter", "extractions that failed"),
    "extraction_seconds": SeriesForm("histogram", "seconds of an extraction", buckets=BUCKETS),
    "uploads_total": SeriesForm("counter", "uploads"),
    "deletes_total": SeriesForm("counter", "deletes"),
    "evictions_total": SeriesForm("counter", "artifacts that had to leave memory", "pool", POOLS),
    "oversize_skips_total": SeriesForm("counter", "artifacts that were too large for memory", "pool", POOLS),
    "bytes": SeriesForm("gauge", "bytes of artifacts in memory", "pool", POOLS),
    "entries": SeriesForm("gauge", "artifacts in memory", "pool", POOLS),
    "voices": SeriesForm("gauge", "registered voices"),
    "store_write_failures_total": SeriesForm("counter", "changes that the voice store did not take"),
    "store_quarantined_total": SeriesForm("counter", "in a folder: files that were set aside"),
    "store_age_seconds": SeriesForm("gauge", "in a database: seconds since memory was known to be as the store"),
    "store_unreadable": SeriesForm("gauge", "in a database: voices that are left out, for their rows are damaged"),
    "store_look_failures_total": SeriesForm("counter", "in a database: failed questions for changes"),
    "store_resets_total": SeriesForm("counter", "in a database: times that all voices were read again"),
    "store_claims_refused_total": SeriesForm("counter", "in a database: artifacts that another server was making"),
}
"""Each follows an entry of `stats`."""


class Metrics:
    """Counters and a histogram of extraction seconds. Thread-safe.

    Args:
        on_extraction: called with the seconds of each extraction.
    """

    def __init__(self, on_extraction: Callable[[float], None] = lambda seconds: None) -> None:
        self._on_extraction = on_extraction
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._observed = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def count(self, name: str) -> None:
        """Increase a counter by one."""
        with self._lock:
            self._counts[name] += 1

    def extracted(self, seconds: float) -> None:
        """Count an extraction and its seconds."""
        with self._lock:
            self._counts["extractions"] += 1
            self._observed[bisect_left(BUCKETS, seconds)] += 1
            self._seconds += seconds
        self._on_extraction(seconds)

    def stats(self) -> dict[str, Any]:
        """All counters at one moment; `buckets` are cumulative as in Prometheus, the last one is `+Inf`."""
        with self._lock:
            bounds = [*map(str, BUCKETS), "+Inf"]
            histogram = {
                "buckets": dict(zip(bounds, accumulate(self._observed), strict=True)),
                "sum": self._seconds,
                "count": sum(self._observed),
            }
            return {**self._counts, "extraction_seconds": histogram}
