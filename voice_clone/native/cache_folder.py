"""The folders for what a start keeps for the next one, and parts of the keys under which it lies there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from voice_clone.native.instructions import INSTRUCTIONS

VARIABLE = "NUMBA_CACHE_DIR"
PACKAGE = Path(__file__).parents[1]
AHEAD = PACKAGE / "native" / "ahead_of_time"
"""Machine code that was compiled before the first start; kernels/ahead.py writes it."""
_OF_PROCESSOR = r"^(vendor_id|cpu family|model|stepping|flags|Features|CPU \w+)\s*:(.*)$"


def writable_folder(name: str) -> Path | None:
    """A folder of this name for what is computed once, or None if it can be written nowhere.

    It lies in the folder of the variable if that is set, else beside the sources. If it cannot be written there, it
    lies in the user's cache folder.
    """
    for parent in _parents():
        folder = parent / name
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK | os.X_OK):  # which also knows that a disk is read-only
                return folder
    return None


def _parents() -> Iterator[Path]:
    if given := os.environ.get(VARIABLE):
        yield Path(given)
    yield PACKAGE / "native" / "__pycache__"
    from platformdirs import user_cache_path  # where neither can be written

    yield user_cache_path("voice-clone")


@cache
def digest_of(sources: Path, without: frozenset[str] = frozenset()) -> str:
    """A digest of the names and contents of all Python files below a folder, but not in folders of these names."""
    digest, root = hashlib.sha256(), str(sources)
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - without)
        for name in sorted(name for name in names if name.endswith(".py")):
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
            digest.update(f"{folder.removeprefix(root)}/{name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


def compiler() -> list[str]:
    """The versions of numba, llvmlite and numpy."""
    return [np.__version__, *installed("numba-", "llvmlite-")]


@cache
def installed(*beginnings: str) -> list[str]:
    """Packages and their versions, by the beginnings of their folders' names: `importlib.metadata` takes 20 ms."""
    found = [entry for folder in filter(os.path.isdir, sys.path) for entry in os.listdir(folder)]
    return sorted(entry for entry in found if entry.startswith(beginnings))


@cache
def processor_digest() -> str:
    """A digest of the instructions that code is compiled for and of this processor."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        first = platform.processor()
    found = re.findall(_OF_PROCESSOR, first, re.MULTILINE)
    return hashlib.sha256(repr((INSTRUCTIONS, platform.machine(), found)).encode()).hexdigest()[:16]
