"""Files that are whole or not there: they are written aside, then renamed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` write a file, which appears at `path` when it is complete and on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(aside)
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write an .npz file, uncompressed."""

    def write(aside: Path) -> None:
        with aside.open("wb") as file:
            np.savez(file, **arrays)

    write_whole(path, write)


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values as torch does."""
    write_whole(path, lambda aside: torch.save(state, aside))
