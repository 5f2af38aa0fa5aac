"""The speaker cache's statistics on Triton's /metrics.

    voice_clone_speaker_cache_{hits,misses,restores,extractions,extraction_failures,uploads,deletes}_total
    voice_clone_speaker_cache_{evictions,oversize_skips}_total{pool}   pool: registered or inline
    voice_clone_speaker_cache_{bytes,entries}{pool}                    artifacts in memory
    voice_clone_speaker_cache_voices                                   registered voices
    voice_clone_speaker_cache_extraction_seconds                       histogram
    voice_clone_speaker_cache_store_write_failures_total               changes that the voice store did not take

Where voices are in a directory:

    voice_clone_speaker_cache_store_quarantined_total                  files that were set aside

Where voices are in a database:

    voice_clone_speaker_cache_store_age_seconds                        since memory was known to be exact
    voice_clone_speaker_cache_store_unreadable                         voices that are left out: their rows are damaged
    voice_clone_speaker_cache_store_{look_failures,resets,claims_refused}_total

They follow the counters of the cache once a second: a request never waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from voice_clone.speakers.lru import POOLS
from voice_clone.speakers.metrics import BUCKETS, COUNTERS
from voice_clone.triton.telemetry import Metric

PREFIX = "voice_clone_speaker_cache_"
STORE_COUNTERS = ("write_failures", "quarantined", "look_failures", "resets", "claims_refused")  # each where it is
STORE_GAUGES = {
    "age_seconds": "seconds since memory was known to be as the voice store",
    "unreadable": "voices that are left out because their rows in the voice store are damaged",
}
PERIOD = 1.0  # seconds


class SpeakerMetrics:
    """Publishes the counters that `stats` returns, every `PERIOD` seconds until `close`."""

    def __init__(self, stats: Callable[[], Mapping[str, Any]]) -> None:
        self._stats = stats
        self._counters: dict[tuple[str, str], Metric] = {}  # by name and what it is of: a pool, the store, or ""
        self._gauges: dict[tuple[str, str], Metric] = {}
        for name in COUNTERS:
            self._counters[name, ""] = Metric(f"{PREFIX}{name}_total", f"{name} of the speaker cache", "counter")
        for pool in POOLS:
            labels, text = {"pool": pool}, "of artifacts in memory"
            for name in ("evictions", "oversize_skips"):
                self._counters[name, pool] = Metric(f"{PREFIX}{name}_total", f"{name} {text}", "counter", labels)
            for name in ("bytes", "entries"):
                self._gauges[name, pool] = Metric(f"{PREFIX}{name}", f"{name} {text}", "gauge", labels)
        self._gauges["speakers", ""] = Metric(f"{PREFIX}voices", "registered voices", "gauge")
        of_store = stats()["store"]
        for name in of_store.keys() & STORE_GAUGES.keys():
            self._gauges[name, "store"] = Metric(f"{PREFIX}store_{name}", STORE_GAUGES[name], "gauge")
        for name in of_store.keys() & set(STORE_COUNTERS):
            text = f"{name} of the voice store"
            self._counters[name, "store"] = Metric(f"{PREFIX}store_{name}_total", text, "counter")
        self._seconds = Metric(f"{PREFIX}extraction_seconds", "seconds of an extraction", "histogram", None, BUCKETS)
        self._shown: dict[tuple[str, str], float] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def extracted(self, seconds: float) -> None:
        """Count an extraction and its seconds."""
        self._seconds.observe(seconds)

    def close(self) -> None:
        """Publish once more and stop."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(PERIOD):
            self._publish()
        self._publish()

    def _publish(self) -> None:
        stats = self._stats()
        for key, metric in self._counters.items():
            value = _value(stats, *key)
            if (grown := value - self._shown.get(key, 0)) > 0:
                metric.add(grown)
                self._shown[key] = value
        for key, metric in self._gauges.items():
            value = _value(stats, *key)
            if value != self._shown.get(key):
                metric.set(value)
                self._shown[key] = value


def _value(stats: Mapping[str, Any], name: str, of: str) -> float:
    part = {"": stats, "store": stats["store"], **stats["pools"]}[of]
    return float(part[name])
