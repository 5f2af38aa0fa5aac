"""Shared by the measurements: a description of the machine, percentiles, tables, JSON."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

PERCENTILES = (50, 90, 95, 99)
PACKAGES = ("voice-clone-server", "torch", "numpy", "tritonclient", "onnxruntime", "qwen-tts")


def machine() -> dict[str, Any]:
    """The conditions of a figure: processor, cores, memory, GPU, versions, commit, date, and what else runs.

    `load` is the number of processes that wanted a core over the last minute, the measurement's own among them.
    """
    cpu = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "gpu": _gpu(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": commit(),
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def summary(values: Sequence[float]) -> dict[str, float]:
    """n, mean, min, max and the percentiles of `values`; only n where there are none."""
    if not len(values):
        return {"n": 0}
    found = {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES}
    ends = {"mean": float(np.mean(values)), "min": float(np.min(values)), "max": float(np.max(values))}
    return {"n": len(values), **{name: round(value, 4) for name, value in {**ends, **found}.items()}}


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table, its columns aligned for the terminal."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[place]) for line in [list(columns), *cells]) for place in range(len(columns))]

    def line(values: Sequence[str]) -> str:
        return "| " + " | ".join(value.ljust(width) for value, width in zip(values, widths, strict=True)) + " |"

    return "\n".join([line(columns), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, cells)])


def write(path: Path | None, figures: Mapping[str, Any]) -> None:
    """Write the figures with the machine's description as JSON; None: nowhere.

    A file is there whole or not at all, whenever the measurement is killed. It needs no client: a GPU may have none.
    """
    if path is None:
        return
    aside = path.with_name(f"{path.name}.partial") if path.is_file() or not path.exists() else path  # a pipe: written
    aside.write_text(json.dumps({"machine": machine(), **figures}, indent=2) + "\n", encoding="utf-8")
    if aside is not path:
        aside.replace(path)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value)


def _gpu() -> str | None:
    try:
        import torch
    except ImportError:
        return None
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def commit() -> str | None:
    """The commit of the code that ran; `+` where files differ from it. None outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
