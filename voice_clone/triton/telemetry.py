"""Metrics and log lines of a model's process, through the server's own /metrics and log."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import triton_python_backend_utils as pb_utils

from voice_clone.errors import printable

log = logging.getLogger(__name__)

# Fault: parallel-metrics. Two metric updates, or two log lines, at once from one process corrupt the memory that it
# shares with the server, and take either of them down (log lines: suspected alone).
_one_at_a_time = threading.Lock()


class Metric:
    """One series on the server's /metrics. Every update is a call to the server (about 0.1 ms): one a request, at most.

    Args:
        name: Prometheus name; `_total` for a counter by convention.
        description: its help text.
        kind: `counter`, `gauge` or `histogram`.
        labels: of this series.
        buckets: upper bounds of a histogram.
        family: of models; a further label.
    """

    _families: ClassVar[dict[str, Any]] = {}
    _made: ClassVar[dict[tuple[str, tuple[tuple[str, str], ...]], Any]] = {}
    """All series that were made. A model that wakes up makes its series again, and they must go on with their values:
    Triton takes a destroyed series from /metrics, and a new one begins at 0.
    """

    def __init__(
        self,
        name: str,
        description: str,
        kind: str,
        labels: Mapping[str, str] | None = None,
        buckets: Sequence[float] | None = None,
        *,
        family: str | None = None,
    ) -> None:
        more = {} if buckets is None else {"buckets": list(buckets)}
        labels = {**({} if family is None else {"family": family}), **(labels or {})}
        with _one_at_a_time:
            if name not in self._families:
                number = getattr(pb_utils.MetricFamily, kind.upper())
                self._families[name] = pb_utils.MetricFamily(name=name, description=description, kind=number)
            key = name, tuple(labels.items())
            if key not in self._made:
                self._made[key] = self._families[name].Metric(labels=labels, **more)
            self._metric = self._made[key]

    @classmethod
    def forget(cls) -> None:
        """Destroy all that are not in use."""
        cls._made.clear()
        cls._families.clear()
        gc.collect()  # a model is often part of a cycle

    def add(self, amount: float = 1.0) -> None:
        self._update(self._metric.increment, amount)

    def set(self, value: float) -> None:
        self._update(self._metric.set, value)

    def observe(self, value: float) -> None:
        self._update(self._metric.observe, value)

    def _update(self, change: Callable[[float], None], value: float) -> None:
        """Update the series; a failure is only logged."""
        try:
            with _one_at_a_time:
                change(value)
        except Exception:  # logged outside the lock, which the log takes, too
            log.exception("a metric could not be updated")


class _TritonHandler(logging.Handler):
    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record. It cannot fail: the caller may be the only one that can still answer a request."""
        try:
            line = printable(f"{self._model}: {self.format(record)}")
            logger = pb_utils.Logger
            with _one_at_a_time:
                if record.levelno >= logging.ERROR:
                    logger.log_error(line)
                elif record.levelno >= logging.WARNING:
                    logger.log_warn(line)
                else:
                    logger.log_info(line)
        except Exception:
            self.handleError(record)  # to the standard error output, which is the server's


def log_to_triton(model: str) -> None:
    """Send this process's logging through Triton's log."""
    root = logging.getLogger("voice_clone")
    root.handlers = [_TritonHandler(model)]
    root.setLevel(logging.INFO)
    root.propagate = False
