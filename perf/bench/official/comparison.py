"""What the comparisons of a family's bare stages with official networks share: the command line, settings, a clock."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from voice_clone.settings import PRECISIONS, Settings


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


def cpu_settings(family: str, folder: Path, precision: str = "fp32") -> Settings:
    """As of a server on a CPU."""
    given = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cpu", "PRECISION": precision}
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
