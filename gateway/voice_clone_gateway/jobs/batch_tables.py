"""Batches and the files that callers send, in the database of the jobs; for the one thread that works in it.

A batch is a row, and each of its lines a job that names it. How far it is shows in its lines alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from .database import Database
from .tables import LIVE_ROW, Job, JobTables, TooMany, page_of

MOST_FILES = 1000
"""That an owner sent, and that are kept."""
MOST_LINES = 10_000
"""Of a batch."""
MOST_LINES_KEPT = 50_000
"""Of all batches of an owner."""


@dataclass(frozen=True)
class SentFile:
    """A file that a caller sent, without its text."""

    id: str
    owner: str
    name: str
    size: int
    """Bytes."""
    created_at: float


@dataclass(frozen=True)
class Batch:
    """A batch, as it is stored."""

    id: str
    owner: str
    file: str
    """The id of the file with its lines."""
    metadata: str | None
    """JSON of the caller's own."""
    created_at: float
    cancelled_at: float | None = None
    """When its caller cancelled it, if lines of it had not ended."""


@dataclass(frozen=True)
class Progress:
    """How far a batch is."""

    counts: Mapping[str, int]
    """Of its lines, by their status."""
    started_at: float | None
    """When the first line was begun."""
    ended_at: float | None
    """When the latest of those that have ended did."""

    @property
    def live(self) -> int:
        """Lines that have not ended."""
        return self.counts.get("queued", 0) + self.counts.get("in_progress", 0)


_FILE = ", ".join(each.name for each in fields(SentFile))
_BATCH = ", ".join(each.name for each in fields(Batch))


class BatchTables:
    """They all.

    Args:
        database: of the jobs.
        jobs: in it.
    """

    def __init__(self, database: Database, jobs: JobTables) -> None:
        self._database, self._jobs = database, jobs

    def add_file(self, file: SentFile, text: str) -> None:
        """Keep a file. Raises: TooMany."""
        with self._database.transaction(f"new file of {file.owner}"):
            if self._jobs.count("file", "owner = ?", file.owner) >= MOST_FILES:
                raise TooMany(f"{MOST_FILES} files of this key are kept, its maximum; delete some with DELETE")
            values = [getattr(file, each.name) for each in fields(SentFile)]
            self._database.run(f"INSERT INTO file ({_FILE}, data) VALUES (?, ?, ?, ?, ?, ?)", (*values, text))

    def file(self, owner: str, id: str) -> SentFile | None:
        """A file of an owner."""
        return next(iter(self._files("id = ? AND owner = ?", (id, owner))), None)

    def text_of(self, id: str) -> str:
        """The text of a file; empty if it was deleted."""
        found = self._database.run("SELECT data FROM file WHERE id = ?", (id,)).fetchone()
        return "" if found is None else str(found[0])

    def files(self, owner: str, limit: int, after: str | None, newest_first: bool) -> list[SentFile]:
        """Files of an owner in the order in which they were sent."""
        return self._files(*page_of("file", owner, limit, after, newest_first))

    def delete_file(self, id: str) -> None:
        """Forget a file; batches go on without it."""
        self._database.run("DELETE FROM file WHERE id = ?", (id,))
        self._database.scrub()

    def create(self, batch: Batch, lines: Sequence[tuple[Job, str | None]]) -> None:
        """Keep a new batch with its lines; see `JobTables.insert`.

        Raises:
            TooMany.
        """
        with self._database.transaction(f"new job of {batch.owner}"):
            self._jobs.check_count(batch.owner)
            kept = self._jobs.count("job", "owner = ? AND batch IS NOT NULL", batch.owner)
            if kept + len(lines) > MOST_LINES_KEPT:
                raise TooMany(
                    f"the batches of this key have {kept} lines, and may have {MOST_LINES_KEPT}; delete jobs of some"
                )
            values = [getattr(batch, each.name) for each in fields(Batch)]
            self._database.run(f"INSERT INTO batch ({_BATCH}) VALUES (?, ?, ?, ?, ?, ?)", values)
            self._jobs.insert(lines)

    def get(self, owner: str, id: str) -> Batch | None:
        """A batch of an owner."""
        return next(iter(self._batches("id = ? AND owner = ?", (id, owner))), None)

    def page(self, owner: str, limit: int, after: str | None) -> list[Batch]:
        """Batches of an owner, the newest first."""
        return self._batches(*page_of("batch", owner, limit, after, newest_first=True))

    def progress(self, ids: Sequence[str]) -> dict[str, Progress]:
        """How far batches are, by their ids."""
        rows = self._database.run(
            "SELECT batch, status, count(*), min(started_at), max(completed_at) FROM job "
            f"WHERE batch IN ({', '.join('?' * len(ids))}) GROUP BY batch, status",
            ids,
        ).fetchall()
        found = dict[str, Progress]()
        for id in ids:
            own = [row[1:] for row in rows if row[0] == id]
            started = min((start for _, _, start, _ in own if start is not None), default=None)
            ended = max((end for *_, end in own if end is not None), default=None)
            found[id] = Progress({status: count for status, count, *_ in own}, started, ended)
        return found

    def cancel(self, batch: Batch, keep_seconds: float) -> list[Job]:
        """End the lines of a batch that were not begun. Returns the others that have not ended.

        Args:
            keep_seconds: for which they are kept.
        """
        db, unbegun, now = self._database, f"batch = ? AND gateway IS NULL AND {LIVE_ROW}", self._database.now()
        with db.transaction():
            if not self._jobs.count("job", f"batch = ? AND {LIVE_ROW}", batch.id):
                return []
            db.run("UPDATE batch SET cancelled_at = coalesce(cancelled_at, ?) WHERE id = ?", (now, batch.id))
            db.run(f"DELETE FROM job_text WHERE job IN (SELECT id FROM job WHERE {unbegun})", (batch.id,))
            ended = "UPDATE job SET status = 'cancelled', completed_at = ?, expires_at = ?"
            db.run(f"{ended} WHERE {unbegun}", (now, now + keep_seconds, batch.id))
        db.scrub()
        return self._jobs.found(f"batch = ? AND {LIVE_ROW}", (batch.id,))

    def lines(self, batch: str, statuses: Sequence[str], after: str | None, limit: int) -> list[Job]:
        """Lines of a batch with one of these statuses, in their order.

        Args:
            after: the id of the line before them; None: from the first one on.
        """
        where, values = f"batch = ? AND status IN ({', '.join('?' * len(statuses))})", [batch, *statuses]
        if after is not None:
            where += " AND number > (SELECT number FROM job WHERE id = ?)"
            values.append(after)
        return self._jobs.found(f"{where} ORDER BY number LIMIT {limit:d}", values)

    def forget_old(self, keep_seconds: float) -> None:
        """Forget files that were sent longer ago, and batches without lines."""
        self._database.run("DELETE FROM file WHERE created_at < ?", (self._database.now() - keep_seconds,))
        lines = "SELECT batch FROM job WHERE batch IS NOT NULL"
        self._database.run(f"DELETE FROM batch WHERE id NOT IN ({lines})")

    def _files(self, where: str, values: Iterable[str]) -> list[SentFile]:
        rows = self._database.run(f"SELECT {_FILE} FROM file WHERE {where}", [*values]).fetchall()
        return [SentFile(*row) for row in rows]

    def _batches(self, where: str, values: Iterable[str]) -> list[Batch]:
        rows = self._database.run(f"SELECT {_BATCH} FROM batch WHERE {where}", [*values]).fetchall()
        return [Batch(*row) for row in rows]
