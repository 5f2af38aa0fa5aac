"""Files that are replaced together: all of them, or none, also when the process or the machine dies in between.

The new files are written under temporary names in the folder of the old ones. Then a list of them is written, whole or
not at all: with it the change is made. Then each gets its name, and the list goes. Whoever finds a list, finishes that.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from voice_clone.speakers.disk.files import TEMPORARY, Files, replace_file

LIST = "import"  # the name of the list
_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")

log = logging.getLogger(__name__)


class Together:
    """Replaces files of one folder together. Not thread-safe.

    Args:
        directory: where the list is.
        folder: where the files are.
        files: the operations on the file system.
    """

    def __init__(self, directory: Path, folder: Path, files: Files) -> None:
        self._directory = directory
        self._list = directory / LIST
        self._folder = folder
        self._files = files
        self._listed = False  # a list may be on the disk
        self._unnamed: list[str] = []  # its files that have their temporary names

    @property
    def unfinished(self) -> bool:
        """Whether `finish` has something to do; another `replace` must wait for it."""
        return self._listed

    def replace(self, contents: Iterable[tuple[Path, Callable[[], bytes]]]) -> None:
        """Put these bytes at these paths, in the end by `finish`. The change is made when this returns.

        Raises:
            OSError: nothing has changed and no temporary file is left.
        """
        written: list[Path] = []
        names: list[str] = []
        try:
            for path, data in contents:
                names.append(path.name)
                written.append(self._temporary(path.name))
                with contextlib.suppress(FileNotFoundError):  # left by a failure whose clean-up failed as well
                    self._files.remove(written[-1])
                self._files.write(written[-1], data())
            self._files.sync_directory(self._folder)
            replace_file(self._files, self._list, json.dumps(names).encode())
        except OSError:
            for path in written:
                with contextlib.suppress(OSError):
                    self._files.remove(path)
            raise
        self._listed, self._unnamed = True, names

    def finish(self) -> None:
        """Give the files of the list their names, and remove it.

        Raises:
            OSError: call it again; what was replaced counts nevertheless.
        """
        while self._unnamed:
            with contextlib.suppress(FileNotFoundError):  # it got its name before a crash
                self._files.rename(self._temporary(self._unnamed[-1]), self._folder / self._unnamed[-1])
            self._unnamed.pop()
        self._files.sync_directory(self._folder)  # the list must not go before the names are there,
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(self._list)
        self._files.sync_directory(self._directory)  # nor come back beside the files of another import
        self._listed = False

    def restore(self) -> None:
        """Read the list that an earlier process left, if it left one."""
        if not self._list.exists():
            return
        try:
            with self._list.open("rb") as file:
                names = json.loads(file.read(1 << 24))
            if not isinstance(names, list) or not all(isinstance(n, str) and _NAME.fullmatch(n) for n in names):
                raise ValueError("it lists other things")
        except (ValueError, RecursionError) as error:  # none of ours: ours is written whole or not at all
            log.warning("a list of imported voices is damaged and counts for nothing: %s", error)
            return
        finally:
            self._listed = True
        log.info("finishing the import of %d voices", len(names))
        self._unnamed = names

    def path_of(self, path: Path) -> Path:
        """Where the bytes of a file are now."""
        return self._temporary(path.name) if path.name in self._unnamed else path

    def _temporary(self, name: str) -> Path:
        return self._folder / f"{TEMPORARY}{LIST}-{name}"
