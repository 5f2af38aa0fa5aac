"""Networks on a CPU as native code: loops that numba compiles when they are first run, and keeps in `__pycache__`.

numba sees a change of a function's own file, not of those that were compiled into it. So whatever was compiled from
other sources than these goes before any of it is loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path


def forget_other_sources(folder: Path) -> None:
    """Remove what numba keeps below `folder`, unless all sources there are those that it was compiled from."""
    digest = hashlib.sha256()
    for source in sorted(folder.rglob("*.py")):
        digest.update(source.name.encode() + b"\0" + hashlib.sha256(source.read_bytes()).digest())
    kept = folder / "__pycache__"
    stamp = kept / "sources.sha256"
    # What is read-only was installed as a whole, with new times of all files; those numba sees.
    with contextlib.suppress(OSError):
        if stamp.is_file() and stamp.read_text() == digest.hexdigest():
            return
        kept.mkdir(exist_ok=True)
        for file in [*folder.rglob("*.nbi"), *folder.rglob("*.nbc")]:
            file.unlink(missing_ok=True)
        new = stamp.with_suffix(f".{os.getpid()}")
        new.write_text(digest.hexdigest())
        new.replace(stamp)


forget_other_sources(Path(__file__).parent)
