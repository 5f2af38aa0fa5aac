"""The form of the series on /metrics. Each part of the server has a table of its own series.

The tables are `SERIES` of this module, batching/statistics.py, codec/series.py and speakers/metrics.py; what makes a
series of a row there knows the metrics system. docs/operations.md lists them: `python -m tools.models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol


class Series(Protocol):
    """One series of a metrics system."""

    def add(self, amount: float = 1.0) -> None:
        """Increase a counter."""

    def set(self, value: float) -> None:
        """Set a gauge."""

    def observe(self, value: float) -> None:
        """Add an observation to a histogram."""


MakeSeries = Callable[..., Series]
"""(name, description, kind, labels, buckets) -> a series."""


@dataclass(frozen=True)
class SeriesForm:
    """What a series counts.

    Attributes:
        label: distinguishes series of one name.
        values: of the label; each series is there from the start, at 0.
        buckets: upper bounds of a histogram.
    """

    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    label: str = ""
    values: tuple[str, ...] = ("",)
    buckets: tuple[float, ...] | None = None


SERIES: Mapping[str, SeriesForm] = {
    "wakes_total": SeriesForm("counter", "times that a model at rest was loaded again; its name is the label `model`"),
}
"""Of all models that may rest."""


class SeriesTable:
    """All series of one table: `table("streams_total", "stop").add()`."""

    def __init__(self, prefix: str, forms: Mapping[str, SeriesForm], make: MakeSeries) -> None:
        self._series = {
            (name, value): make(
                f"{prefix}{name}", form.meaning, form.kind, {form.label: value} if form.label else None, form.buckets
            )
            for name, form in forms.items()
            for value in form.values
        }

    def __call__(self, name: str, value: str = "") -> Series:
        """The series of that name, with that value of its label."""
        return self._series[name, value]
