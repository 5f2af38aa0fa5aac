"""The phases of a long measurement: each is told when it begins, and what is known by then is in the result file."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perf import report


class Progress:
    """Of a measurement that may be cut short.

    Args:
        path: of the result file; None: there is none.
        figures: what goes into it. The measurement fills it.
    """

    def __init__(self, path: Path | None, figures: Mapping[str, Any]) -> None:
        self._path = path
        self._figures = figures
        self._began = time.perf_counter()

    def begin(self, phase: str) -> None:
        """Write what is known, and tell the phase."""
        self.keep()
        print(f"[{time.perf_counter() - self._began:4.0f} s] {phase}", file=sys.stderr, flush=True)

    def keep(self) -> None:
        """Write what is known. A file is there whole or not at all, whenever the measurement is killed."""
        if self._path is not None:
            partial = self._path.with_name(self._path.name + ".partial")
            report.write(partial, self._figures)
            partial.replace(self._path)
