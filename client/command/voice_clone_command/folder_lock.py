"""A folder for one process at a time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from voice_clone_client.errors import Overloaded


def lock_folder(path: Path, option: str) -> TextIO:
    """Lock the folder of a file until that is closed, or the process has ended. Windows has no such lock.

    Raises:
        Overloaded: another process has the folder.
    """
    file = open(path, "a")  # noqa: SIM115
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise Overloaded(f"another command works on {path.parent}; wait for it, or give another {option}") from None
    return file
