"""Where things go that are not what their place in the directory of the speakers is for, kept for inspection."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

from voice_clone.speakers.disk.files import Files

LOGGED = 20  # things set aside that are logged one by one
_ODD = re.compile(r"[^A-Za-z0-9._-]")

log = logging.getLogger(__name__)


class Quarantine:
    """The folder of such things. Each gets a plain name of its own, whatever its name was."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder = folder
        self._files = files
        self.taken = 0  # things

    def take(self, path: Path, reason: str) -> None:
        """Move a file, or anything else, here; the caller then makes it durable.

        Raises:
            OSError: it is still where it was.
        """
        name = _ODD.sub("_", path.name)[:100]
        number, self.taken = self.taken, self.taken + 1
        self._files.rename(path, self._folder / f"{name}.{time.time_ns()}.{number}")
        if number < LOGGED:
            log.warning("set %s aside in quarantine: %s", name, reason)
        elif number == LOGGED:
            log.warning("set more aside in quarantine; only the first %d are logged", LOGGED)
