"""The counter of generations: a file that holds a number not below any generation in use."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from voice_clone.speakers.disk.files import Files, replace_file
from voice_clone.speakers.record import MAX_GENERATION, SpeakerRecord

_BATCH = 64  # generations reserved by one write; a crash skips the unused ones
_NUMBER = re.compile(rb"[0-9]{1,18}")

log = logging.getLogger(__name__)


class Generations:
    """Numbers, each larger than all before it, across processes. Thread-safe.

    Args:
        path: the file.
        files: the operations on the file system. Methods raise their OSError; then no number was given.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._lock = threading.Lock()
        self._next = self._reserved = 0

    def start(self, records: Iterable[SpeakerRecord]) -> None:
        """Continue above every earlier generation, including those of deleted speakers."""
        above = max((record.generation for record in records), default=0)
        if self._path.exists():
            text = b""
            with contextlib.suppress(OSError), self._path.open("rb") as file:
                text = file.read(64).strip()
            if _NUMBER.fullmatch(text) and int(text) < MAX_GENERATION:
                above = max(above, int(text))
            else:
                log.warning("the generation counter is damaged; generations continue from the clock")
                above = max(above, int(time.time()))
        self._next = self._reserved = above

    def next(self) -> int:
        """The next number."""
        with self._lock:
            if self._next >= self._reserved:
                self._reserve(self._next + _BATCH)
            self._next += 1
            return self._next

    def give_back(self) -> None:
        """Leave no unused numbers to the next process."""
        with self._lock:
            if self._next < self._reserved:
                self._reserve(self._next)

    def _reserve(self, until: int) -> None:
        replace_file(self._files, self._path, str(until).encode())
        self._files.sync_directory(self._path.parent)
        self._reserved = until
