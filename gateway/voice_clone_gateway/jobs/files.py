"""The database of a gateway's jobs, the one thread that works in it, and the one that says that the gateway works."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..settings import Settings
from .batch_tables import BatchTables
from .database import Database, ResultFile
from .sentences import SentenceStore
from .sqlite import SQLiteDatabase
from .tables import Job, JobTables

log = logging.getLogger(__name__)

T = TypeVar("T")

DAY = 24 * 3600.0
_LOCKED = 0.2  # seconds between two attempts to take over the files of another gateway
_PIECE = 1 << 18  # bytes of a file that are read at once


class JobFiles:
    """What is kept of jobs. Tables and sentences are for the thread alone, by `aside` or `blocking`.

    Args:
        settings: of the gateway.

    Attributes:
        shared: whether other gateways work in it, too.

    Raises:
        ValueError: there is a folder and a database, the address of the database is wrong, or psycopg is missing.
    """

    def __init__(self, settings: Settings) -> None:
        self._database = database_of(settings)
        self._thread = ThreadPoolExecutor(1, "jobs")
        self.shared = self._database.shared
        name = uuid.uuid4().hex
        self.tables = JobTables(self._database, settings.max_jobs, name)
        self.batches = BatchTables(self._database, self.tables)
        # A statement may take longer than other gateways wait for a sign of life, so that has another connection.
        self._life = database_of(settings) if self.shared else None
        self._life_thread = ThreadPoolExecutor(1, "jobs beat")
        self._life_tables = None if self._life is None else JobTables(self._life, settings.max_jobs, name)
        self.sentences = SentenceStore(self._database, settings.sentence_bytes, settings.sentence_days * DAY)

    async def open(self) -> None:
        """Open the database, as soon as no other gateway owns it.

        Raises:
            Exception: it cannot be read.
        """
        warned = False
        while True:
            try:
                await self.aside(self._database.open)
                break
            except BlockingIOError:
                if not warned:
                    log.warning("another gateway has the jobs in jobs_dir; this one waits for it")
                warned = True
                await asyncio.sleep(_LOCKED)
        if self._life is not None:
            await asyncio.get_running_loop().run_in_executor(self._life_thread, self._life.open)
            await self.beat()  # before it claims a job

    async def beat(self) -> None:
        """Tell the other gateways that this one works."""
        assert self._life_tables is not None
        await asyncio.get_running_loop().run_in_executor(self._life_thread, self._life_tables.beat)

    async def leave(self) -> None:
        """Tell them that it stops, after a beat that is under way."""
        assert self._life_tables is not None
        await asyncio.get_running_loop().run_in_executor(self._life_thread, self._life_tables.leave)

    async def let_go(self) -> None:
        """Leave it to other gateways."""
        await self.aside(self._database.close)
        if self._life is not None:
            await asyncio.get_running_loop().run_in_executor(self._life_thread, self._life.close)

    async def close(self) -> None:
        """Let it go for ever, when the threads are idle."""
        await self.let_go()
        for thread in (self._thread, self._life_thread):
            await asyncio.to_thread(thread.shutdown)

    async def aside(self, call: Callable[..., T], *arguments: Any) -> T:
        """The result of a call in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *arguments))

    def blocking(self, call: Callable[..., T], *arguments: Any) -> T:
        """The same for another thread, which waits."""
        return self._thread.submit(call, *arguments).result()

    def part_of(self, job: str) -> Path:
        """Where the file of a job is made."""
        return self._database.part_of(job)

    async def keep_result(self, job: Job) -> None:
        """Keep that file. Raises: Lost, another gateway makes the job, or it has ended."""
        begin: int | None = 0
        while begin is not None:
            begin = await self.aside(self._keep_piece, job, begin)
        await asyncio.to_thread(self.part_of(job.id).unlink, missing_ok=True)

    def _keep_piece(self, job: Job, begin: int) -> int | None:
        with self._database.transaction():
            self.tables.hold(job)
            return self._database.keep_result(job.id, begin)

    async def open_result(self, job: str) -> ResultFile | None:
        """The file of a completed job, for `pieces`; None: it is lost."""
        return await self.aside(self._database.open_result, job)

    async def pieces(self, file: ResultFile, wanted: range) -> AsyncIterator[bytes]:
        """These bytes of the file, which is closed then."""
        begin = wanted.start
        try:
            while begin < wanted.stop:
                most = min(_PIECE - begin % _PIECE, wanted.stop - begin)
                if not (piece := await self.aside(file.read, begin, most)):
                    break
                begin += len(piece)
                yield piece
        finally:
            file.close()

    async def remove_result(self, job: str) -> None:
        """Remove it, if it is there."""
        await self.aside(self._database.remove_result, job)

    async def shrink(self) -> None:
        """Give the space of deleted rows back."""
        await self.aside(self._database.shrink)


def database_of(settings: Settings) -> Database:
    """The database that the settings name. Raises: as `JobFiles`."""
    if settings.jobs_dir and settings.jobs_database:
        raise ValueError(
            "jobs_dir and jobs_database are both given, and jobs are in one of them: take out jobs_dir when its jobs "
            "have ended"
        )
    if not settings.jobs_database:
        return SQLiteDatabase(Path(settings.jobs_dir))
    try:
        from .postgres import PostgresDatabase
    except ImportError:
        raise ValueError("jobs in a database need psycopg: pip install 'psycopg[binary]'") from None
    return PostgresDatabase(settings.jobs_database, settings.jobs_database_tls == "verify")
