"""The folder of a gateway's jobs, and the one thread that works in it.

The files are one gateway's: it holds a lock, which the system frees whenever its process ends. Another one with the
same folder waits for it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..settings import Settings
from .sentences import SentenceStore
from .tables import JobTables, opened

log = logging.getLogger(__name__)

T = TypeVar("T")

DAY = 24 * 3600.0
_LOCKED = 0.2  # seconds between two attempts to take over the files of another gateway


class JobFiles:
    """What lies in the folder. Tables and sentences are for the thread alone, by `aside` or `at_once`.

    Args:
        settings: of the gateway.
    """

    tables: JobTables
    sentences: SentenceStore

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._folder = Path(settings.jobs_dir)
        self._thread = ThreadPoolExecutor(1, "jobs")
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None

    async def open(self) -> None:
        """Take the files, as soon as no other gateway has them.

        Raises:
            Exception: they cannot be read.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self._folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        told = False
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    log.warning("another gateway has the jobs in jobs_dir; this one waits for it")
                told = True
                await asyncio.sleep(_LOCKED)
        await self.aside(self._open)

    async def let_go(self) -> None:
        """Leave them to other gateways."""
        if self._connection is not None:
            await self.aside(self._connection.close)
        self._connection = None
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    async def close(self) -> None:
        """Let them go for ever, when the thread is idle."""
        await self.let_go()
        await asyncio.to_thread(self._thread.shutdown)

    async def aside(self, call: Callable[..., T], *arguments: Any) -> T:
        """The result of a call in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *arguments))

    def at_once(self, call: Callable[..., T], *arguments: Any) -> T:
        """The same for another thread, which waits."""
        return self._thread.submit(call, *arguments).result()

    def file_of(self, job: str) -> Path:
        """Where the file of a completed job is."""
        return self._folder / "results" / job

    async def remove_file_of(self, job: str) -> None:
        """Remove it, if it is there."""
        await self.aside(partial(self.file_of(job).unlink, missing_ok=True))

    def _open(self) -> None:
        for name in ("results", "sentences"):
            (self._folder / name).mkdir(mode=0o700, exist_ok=True)
        connection = self._connection = opened(self._folder / "jobs.sqlite3")
        settings = self._settings
        self.tables = JobTables(connection, settings.max_jobs)
        days = settings.sentence_days * DAY
        self.sentences = SentenceStore(connection, self._folder / "sentences", settings.sentence_bytes, days)
        for path in (self._folder / "results").iterdir():
            job = self.tables.get(path.name)
            if job is None or job.digest is None:
                path.unlink()
