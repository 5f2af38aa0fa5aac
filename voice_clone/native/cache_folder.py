"""The folders for what a start keeps for the next one, and parts of the keys under which it lies there."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import tempfile
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path

from voice_clone.native.instructions import INSTRUCTIONS

VARIABLE = "NUMBA_CACHE_DIR"
PACKAGE = Path(__file__).parents[1]
_OF_PROCESSOR = r"^(vendor_id|cpu family|model|stepping|flags|Features|CPU \w+)\s*:(.*)$"


def writable_folder(name: str) -> Path | None:
    """A folder of this name for what is computed once, or None if it can be written nowhere.

    It lies in the folder of the variable if that is set, else beside the sources. If it cannot be written there, it
    lies in the user's cache folder.
    """
    given = os.environ.get(VARIABLE)
    parents = [Path(given)] if given else []
    for parent in [*parents, PACKAGE / "native" / "__pycache__", user_cache_path("voice-clone")]:
        folder = parent / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return None


@cache
def digest_of(sources: Path) -> str:
    """A digest of the names and contents of all Python files below a folder."""
    digest = hashlib.sha256()
    for file in sorted(sources.rglob("*.py")):
        digest.update(file.relative_to(sources).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


@cache
def processor_digest() -> str:
    """A digest of the instructions that code is compiled for and of this processor."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        first = platform.processor()
    found = re.findall(_OF_PROCESSOR, first, re.MULTILINE)
    return hashlib.sha256(repr((INSTRUCTIONS, platform.machine(), found)).encode()).hexdigest()[:16]
