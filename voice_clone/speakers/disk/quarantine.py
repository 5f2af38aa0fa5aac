"""Where things go that are not what their place in the directory of the speakers is for, kept for inspection."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
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
        name = _plain(path)
        number, self.taken = self.taken, self.taken + 1
        self._files.rename(path, self._folder / f"{name}.{time.time_ns()}.{number}")
        if number < LOGGED:
            log.warning("set %s aside in quarantine: %s", name, reason)
        elif number == LOGGED:
            log.warning("set more aside in quarantine; only the first %d are logged", LOGGED)

    def try_to_take(self, path: Path, reason: str) -> None:
        """Take it; where that is impossible it stays, and nothing else happens."""
        try:
            self.take(path, reason)
        except OSError as failure:
            log.warning("%r is of no use (%s), and could not be set aside: %s", path.name, reason, failure.strerror)

    def erase(self, path: Path) -> None:
        """Remove all that ever came from this path.

        Raises:
            OSError: something of it is still here.
        """
        found = list(self._folder.glob(f"{_plain(path)}.*"))
        for each in found:
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            else:
                with contextlib.suppress(FileNotFoundError):
                    self._files.remove(each)
        if found:
            self._files.sync_directory(self._folder)


def _plain(path: Path) -> str:
    return _ODD.sub("_", path.name)[:100]
