"""The speaker cache's statistics on Triton's /metrics.

They follow the counters of the cache once a second: a request never waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from voice_clone.metrics import SeriesTable
from voice_clone.speakers.metrics import SERIES
from voice_clone.triton.telemetry import Metric

TIMES = "extraction_seconds"
PERIOD = 1.0  # seconds


class SpeakerMetrics:
    """Publishes the counters that `stats` returns, every `PERIOD` seconds until `close`."""

    def __init__(self, stats: Callable[[], Mapping[str, Any]]) -> None:
        self._stats = stats
        first = stats()
        lacking = {name for name in SERIES if name.startswith("store_") and _value(first, name) is None}
        forms = {name: form for name, form in SERIES.items() if name not in lacking}
        self._series = SeriesTable("voice_clone_speaker_cache_", forms, Metric)
        self._followed = [(name, pool) for name, form in forms.items() if name != TIMES for pool in form.values]
        self._shown: dict[tuple[str, str], float] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def extracted(self, seconds: float) -> None:
        self._series(TIMES).observe(seconds)

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
        for name, pool in self._followed:
            value, shown = float(_value(stats, name, pool) or 0), self._shown.get((name, pool), 0.0)
            if SERIES[name].kind == "gauge" and value != shown:
                self._series(name, pool).set(value)
            elif SERIES[name].kind == "counter" and value > shown:
                self._series(name, pool).add(value - shown)
            else:
                continue
            self._shown[name, pool] = value


def _value(stats: Mapping[str, Any], name: str, pool: str = "") -> float | None:
    """The entry of `stats` that a series follows; None: this store has no such one."""
    name = name.removesuffix("_total")
    if name.startswith("store_"):
        found: float | None = stats["store"].get(name.removeprefix("store_"))
    else:
        found = (stats["pools"][pool] if pool else stats)["speakers" if name == "voices" else name]
    return found
