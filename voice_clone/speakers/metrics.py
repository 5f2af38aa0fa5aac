"""The counters of the cache. They only grow."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Any

COUNTERS = ("hits", "misses", "restores", "extractions", "extraction_failures", "uploads", "deletes")
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # upper bounds, seconds


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
