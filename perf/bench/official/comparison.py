"""What comparisons of a family's bare stages with official networks share: command line, settings, checks, a clock."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from perf.bench import report
from voice_clone.settings import PRECISIONS, Settings

TOLERANCE = 1e-4  # of a waveform's RMS
Times = dict[str, float]
"""Seconds by stage."""


def parser(command: str, description: str | None, checkpoint: str) -> argparse.ArgumentParser:
    """The options that all of them have.

    Args:
        command: its name.
        description: the text of its help.
        checkpoint: what the checkpoint must be.
    """
    made = argparse.ArgumentParser(
        prog=command, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--checkpoint", type=Path, required=True, help=checkpoint)
    made.add_argument("--seconds", type=float, default=2.0, help="of the clip (default: %(default)s)")
    made.add_argument("--frames", type=int, default=12, help="default: %(default)s")
    made.add_argument("--runs", type=int, default=2, help="default: %(default)s")
    made.add_argument("--precision", choices=PRECISIONS, nargs="+", default=list(PRECISIONS))
    made.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    return made


def check_waveform(ours: Tensor, theirs: Tensor) -> None:
    """End the process if samples differ by more than 1e-4 of their RMS."""
    error = float((ours - theirs).abs().max() / theirs.square().mean().sqrt())
    if error > TOLERANCE:
        raise SystemExit(f"the waveforms differ by {error:.1e} of their RMS: nothing is timed")


def show(found: Mapping[str, Times], columns: Sequence[str]) -> None:
    """Print times as milliseconds, a row for each of `found`; what one lacks is blank."""
    rows = [[name, *(1e3 * times[c] if c in times else None for c in columns)] for name, times in found.items()]
    print(report.table(("ms", *columns), rows))


def cpu_settings(family: str, folder: Path, precision: str = "fp32", **others: str) -> Settings:
    """As of a server on a CPU; `others` by their names without VOICE_CLONE_."""
    given = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cpu", "PRECISION": precision, **others}
    return Settings({}, {f"VOICE_CLONE_{name}": value for name, value in given.items()}, family)


class Clock:
    """A function, and the seconds of each of its calls."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self.seconds: list[float] = []

    def __call__(self, *given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        result = self._run(*given, **named)
        self.seconds.append(time.perf_counter() - began)
        return result
