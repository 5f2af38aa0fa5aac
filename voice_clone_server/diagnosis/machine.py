"""What this machine is, and what of it the server uses."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

from voice_clone import compute
from voice_clone.gpu import has_driver
from voice_clone.native.instructions import INSTRUCTIONS
from voice_clone.native.thread_pool import computing_threads
from voice_clone.settings import ComputeSettings

SHOWN = (  # what matrix products could use: ours to show, LLVM's name
    ("AVX2", "avx2"),
    ("FMA", "fma"),
    ("AVX-512", "avx512f"),
    ("VNNI", "avx512vnni"),
    ("AVX-VNNI", "avxvnni"),
    ("bf16", "avx512bf16"),
    ("AMX int8", "amx-int8"),
    ("AMX bf16", "amx-bf16"),
    ("NEON", "neon"),
    ("dot products", "dotprod"),
    ("int8 matrices", "i8mm"),
    ("SVE", "sve"),
)
BUSY = 0.3  # of the cores
CGROUP = Path("/sys/fs/cgroup")


def machine(settings: ComputeSettings) -> dict[str, Any]:
    """Facts about the processor, the memory and the GPU, and the share of them that the settings give to the server."""
    features = get_host_cpu_features()
    quota = _quota()
    compute.prepare(settings)
    return {
        "processor": _processor(),
        "compiled_for": get_host_cpu_name(),
        "instructions": [name for name, feature in SHOWN if features.get(feature)],
        "used": str(INSTRUCTIONS),
        "vector_bits": 32 * INSTRUCTIONS.width,
        "cores": len(os.sched_getaffinity(0)),
        "core_quota": quota,
        "threads": computing_threads(),
        "load": os.getloadavg()[0],
        "memory_bytes": _memory("MemTotal"),
        "memory_available_bytes": _memory("MemAvailable"),
        "memory_limit_bytes": _number(CGROUP / "memory.max"),
        "device": compute.device(settings),
        **_of_torch(),
    }


def hints(found: dict[str, Any], measured: bool) -> list[str]:
    """What the settings leave unused, or use twice; if speeds are measured, what spoils them."""
    lines = []
    usable = min(found["cores"], max(1, round(found["core_quota"] or found["cores"])))
    if found["device"] == "cpu" and found["threads"] != usable:
        lines.append(
            f"{found['threads']} threads compute, and {usable} cores may be used: set OMP_NUM_THREADS={usable}, "
            "or leave it unset"
        )
    if found["gpu"] is None and found["cuda"] is not None and any(Path("/dev").glob("nvidia[0-9]*")):
        lines.append(compute.NO_GPU % found["torch"])
    if measured and found["load"] > BUSY * usable:
        lines.append(
            f"other programs compute (load {found['load']:.1f}): on an idle machine speech is faster than said here"
        )
    return lines


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return f"{named[1] if named else platform.processor() or 'unknown'}, {platform.machine()}"


def _quota() -> float | None:
    """The cores that a container may use, as its control group has it; None: no limit."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # "max": no limit
        return None


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _memory(name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _of_torch() -> dict[str, Any]:
    """torch's version, the CUDA that it was built for, and the GPU that it can use. It is imported, for seconds, where
    there is the driver of one.
    """
    try:
        found: dict[str, Any] = {"gpu": None, "torch": version("torch"), "cuda": None}
    except PackageNotFoundError:
        return {"gpu": None, "torch": None, "cuda": None}
    if has_driver():
        import torch

        found["cuda"] = torch.version.cuda
        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            found["gpu"] = {"name": torch.cuda.get_device_name(), "memory_bytes": total, "memory_available_bytes": free}
    return found
