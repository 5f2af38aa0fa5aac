"""The jobs of a gateway in a file of SQLite; for one thread of the process that owns the file.

A transaction is on the disk when its method returns: what was acknowledged survives a loss of power, too.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from voice_clone_client.types import Mark

Status = Literal["queued", "in_progress", "completed", "failed", "cancelled"]
LIVE = ("queued", "in_progress")
KEY_SECONDS = 24 * 3600.0
"""For which an Idempotency-Key is known."""

_VERSION = 1
_SCHEMA = """
CREATE TABLE job (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, status TEXT NOT NULL, family TEXT NOT NULL, voice TEXT,
    format TEXT NOT NULL, warnings TEXT NOT NULL, webhook_url TEXT, webhook_secret TEXT, request_id TEXT NOT NULL,
    mark TEXT, sentences INTEGER NOT NULL, characters INTEGER NOT NULL, made INTEGER NOT NULL, done INTEGER NOT NULL,
    created_at REAL NOT NULL, started_at REAL, completed_at REAL, expires_at REAL, error TEXT, seconds REAL,
    size INTEGER, digest TEXT, media_type TEXT, segments TEXT
) STRICT;
CREATE TABLE job_text (job TEXT PRIMARY KEY, request TEXT NOT NULL, plan TEXT NOT NULL) STRICT;
CREATE INDEX job_of_owner ON job (owner, number);
CREATE INDEX job_by_status ON job (status, expires_at);
CREATE TABLE need (job TEXT NOT NULL, address TEXT NOT NULL, PRIMARY KEY (job, address)) STRICT, WITHOUT ROWID;
CREATE INDEX need_of_address ON need (address);
CREATE TABLE job_voice (job TEXT NOT NULL, voice TEXT NOT NULL, PRIMARY KEY (job, voice)) STRICT, WITHOUT ROWID;
CREATE INDEX job_of_voice ON job_voice (voice);
CREATE TABLE idempotency (
    owner TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL, job TEXT NOT NULL, created_at REAL NOT NULL,
    PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE delivery (
    id TEXT PRIMARY KEY, job TEXT NOT NULL, url TEXT NOT NULL, secret TEXT NOT NULL, body TEXT NOT NULL,
    attempts INTEGER NOT NULL, created_at REAL NOT NULL, next_at REAL NOT NULL
) STRICT;
CREATE TABLE sentence (
    address TEXT PRIMARY KEY, owner TEXT NOT NULL, voice TEXT NOT NULL, info TEXT NOT NULL, seconds REAL NOT NULL,
    size INTEGER NOT NULL, digest TEXT NOT NULL, used_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sentence_by_use ON sentence (used_at);
CREATE INDEX sentence_of_voice ON sentence (voice);
"""


@dataclass(frozen=True)
class Job:
    """A job, as it is stored; JSON where that is said."""

    id: str
    owner: str
    """Of the key that made it: `Key.turns`."""
    family: str
    """That speaks it, or the first of its parts."""
    voice: str | None
    """As the request names it."""
    format: str
    warnings: str
    """JSON of a list."""
    webhook_url: str | None
    webhook_secret: str | None
    """Both are gone when it has ended; its `Delivery` has them until it is delivered."""
    request_id: str
    """Of the request that made it."""
    sentences: int
    characters: int
    created_at: float
    mark: Mark | None = None
    """`Key.mark` of the key that made it."""
    status: Status = "queued"
    made: int = 0
    """Sentences that the server spoke for this job."""
    done: int = 0
    """Of one that has ended: sentences that were there."""
    started_at: float | None = None
    completed_at: float | None = None
    """When it ended, in whatever way."""
    expires_at: float | None = None
    error: str | None = None
    """JSON: message, code."""
    seconds: float | None = None
    """Of one that has ended: how long its sound is."""
    size: int | None = None
    digest: str | None = None
    """Of its file; None: there is none, or no more."""
    media_type: str | None = None
    segments: str | None = None
    """JSON: where its parts are."""

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.status in LIVE


_COLUMNS = [each.name for each in fields(Job)]


@dataclass(frozen=True)
class Delivery:
    """A webhook that is to be delivered."""

    id: str
    job: str
    url: str
    secret: str
    body: str
    attempts: int
    created_at: float


@dataclass(frozen=True)
class Result:
    """What has become of a job."""

    status: Status
    error: Mapping[str, Any] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Columns with what there is of it."""


class TooManyJobs(Exception):
    """The owner has as many that have not ended as it may have."""


class KeyReused(Exception):
    """The Idempotency-Key is that of another request."""


def opened(path: Path) -> sqlite3.Connection:
    """A connection to the file, whose tables are there.

    Raises:
        ValueError: a newer gateway made it.
        sqlite3.Error: it cannot be read.
    """
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")  # of what was spoken nothing remains in the file
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise ValueError(f"the jobs in jobs_dir are of a newer gateway; this one knows the form {_VERSION}")
        if version < _VERSION:
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
    except BaseException:
        connection.close()
        raise
    os.chmod(path, 0o600)
    return connection


class JobTables:
    """The jobs, and what belongs to them.

    Args:
        connection: to the file.
        most: jobs of an owner that have not ended.
        clock: seconds since 1970.
    """

    def __init__(self, connection: sqlite3.Connection, most: int, clock: Callable[[], float] = time.time) -> None:
        self._connection = connection
        self._most = most
        self._clock = clock

    def create(
        self,
        job: Job,
        texts: tuple[str, str],
        voices: Iterable[str],
        key: str | None,
        body: str,
    ) -> Job:
        """Keep a new job; or return the one that the same request made before.

        Args:
            texts: JSON of its request and of its plan.
            voices: digests of those that it is in.
            key: Idempotency-Key of the request; None: it has none.
            body: digest of the request.

        Raises:
            KeyReused, TooManyJobs.
        """
        with self._connection as db:
            db.execute("BEGIN IMMEDIATE")
            if key is not None and (known := self.made_before(job.owner, key, body)) is not None:
                return known
            [live] = db.execute("SELECT count(*) FROM job WHERE owner = ? AND status IN (?, ?)", (job.owner, *LIVE))
            if live[0] >= self._most:
                raise TooManyJobs
            values = [getattr(job, name) for name in _COLUMNS]
            db.execute(f"INSERT INTO job ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(values))})", values)
            db.execute("INSERT INTO job_text VALUES (?, ?, ?)", (job.id, *texts))
            db.executemany("INSERT INTO job_voice VALUES (?, ?)", ((job.id, voice) for voice in voices))
            if key is not None:
                row = job.owner, key, body, job.id, self._clock()
                db.execute("INSERT OR REPLACE INTO idempotency VALUES (?, ?, ?, ?, ?)", row)
        return job

    def made_before(self, owner: str, key: str, body: str) -> Job | None:
        """The job that an earlier request with this Idempotency-Key made; `body` as of `create`.

        Raises:
            KeyReused: that was another request.
        """
        found = self._connection.execute(
            "SELECT body, job FROM idempotency WHERE owner = ? AND key = ? AND created_at > ?",
            (owner, key, self._clock() - KEY_SECONDS),
        ).fetchone()
        if found is None or (job := self.get(found[1])) is None:
            return None
        if found[0] != body:
            raise KeyReused
        return job

    def get(self, id: str) -> Job | None:
        """A job."""
        return next(iter(self._jobs("id = ?", (id,))), None)

    def page(self, owner: str, limit: int, after: str | None, newest_first: bool) -> list[Job]:
        """Jobs of an owner in the order in which they were made."""
        compared, order = ("<", "DESC") if newest_first else (">", "ASC")
        where, values = "owner = ?", [owner]
        if after is not None:
            where += f" AND number {compared} (SELECT number FROM job WHERE id = ? AND owner = ?)"
            values += [after, owner]
        return self._jobs(f"{where} ORDER BY number {order} LIMIT {limit:d}", values)

    def live(self) -> list[Job]:
        """All that have not ended, those that were begun first."""
        return self._jobs("status IN (?, ?) ORDER BY status, number", LIVE)

    def next_of(self, owner: str) -> Job | None:
        """The job of an owner that is made next."""
        found = self._jobs("owner = ? AND status IN (?, ?) ORDER BY status, number LIMIT 1", (owner, *LIVE))
        return next(iter(found), None)

    def texts_of(self, id: str) -> tuple[str, str, set[str]]:
        """JSON of a job's request and of its plan, and the digests of its voices."""
        [found] = self._connection.execute("SELECT request, plan FROM job_text WHERE job = ?", (id,))
        voices = self._connection.execute("SELECT voice FROM job_voice WHERE job = ?", (id,))
        return *found, {voice for (voice,) in voices}

    def need(self, id: str, addresses: Iterable[str]) -> None:
        """A job needs speech under these addresses, too, until it ends; one that has ended needs none."""
        with self._connection as db:
            db.execute("BEGIN IMMEDIATE")
            live = "EXISTS (SELECT 1 FROM job WHERE id = ? AND status IN (?, ?))"
            rows = ((id, address, id, *LIVE) for address in addresses)
            db.executemany(f"INSERT OR IGNORE INTO need SELECT ?, ? WHERE {live}", rows)

    def start(self, id: str) -> None:
        """A job is made from now on."""
        with self._connection as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute(
                "UPDATE job SET status = 'in_progress', started_at = coalesce(started_at, ?) "
                "WHERE id = ? AND status IN (?, ?)",
                (self._clock(), id, *LIVE),
            )

    def end(self, id: str, result: Result, event: Mapping[str, Any], keep_seconds: float) -> Job | None:
        """A job has ended; None: it had ended before, which holds.

        Args:
            event: what its webhook is told, if it has one.
            keep_seconds: for which it is kept.
        """
        now = self._clock()
        values = {
            **result.fields,
            "status": result.status,
            "error": None if result.error is None else json.dumps(result.error),
            "completed_at": now,
            "expires_at": now + keep_seconds,
        }
        with self._connection as db:
            db.execute("BEGIN IMMEDIATE")
            names = ", ".join(f"{name} = ?" for name in values)
            changed = db.execute(
                f"UPDATE job SET {names} WHERE id = ? AND status IN (?, ?)", (*values.values(), id, *LIVE)
            )
            if not changed.rowcount:
                return None
            for table in ("need", "job_text"):  # neither is wanted any more
                db.execute(f"DELETE FROM {table} WHERE job = ?", (id,))
            job = self.get(id)
            assert job is not None
            if job.webhook_url is not None:
                row = event["id"], id, job.webhook_url, job.webhook_secret, json.dumps(event), 0, now, now
                db.execute("INSERT INTO delivery VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
                db.execute("UPDATE job SET webhook_url = NULL, webhook_secret = NULL WHERE id = ?", (id,))
        self._empty_log()
        return job

    def held(self, owner: str) -> int:
        """Bytes of the files of an owner's jobs."""
        size = "SELECT coalesce(sum(size), 0) FROM job WHERE owner = ? AND digest IS NOT NULL"
        [held] = self._connection.execute(size, (owner,)).fetchone()
        return int(held)

    def drop_file(self, id: str) -> None:
        """The file of a job is no more."""
        self._connection.execute("UPDATE job SET digest = NULL WHERE id = ?", (id,))

    def delete(self, id: str) -> None:
        """Forget a job."""
        with self._connection as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("DELETE FROM job WHERE id = ?", (id,))
            for table in ("job_text", "need", "job_voice", "delivery"):
                db.execute(f"DELETE FROM {table} WHERE job = ?", (id,))
        self._empty_log()

    def expired(self) -> list[Job]:
        """Jobs whose time is over; forgets Idempotency-Keys, too."""
        now = self._clock()
        self._connection.execute("DELETE FROM idempotency WHERE created_at < ?", (now - KEY_SECONDS,))
        return self._jobs("expires_at < ?", (now,))

    def in_voice(self, voice: str) -> list[Job]:
        """All jobs in a voice, by its digest."""
        return self._jobs("id IN (SELECT job FROM job_voice WHERE voice = ?)", (voice,))

    def voices(self) -> set[str]:
        """The digests of all voices in which something is kept."""
        rows = self._connection.execute("SELECT voice FROM job_voice UNION SELECT voice FROM sentence")
        return {voice for (voice,) in rows if voice}

    def due(self) -> list[Delivery]:
        """Webhooks whose next attempt is due."""
        names = [each.name for each in fields(Delivery)]
        rows = self._connection.execute(
            f"SELECT {', '.join(names)} FROM delivery WHERE next_at <= ? ORDER BY next_at LIMIT 100", (self._clock(),)
        )
        return [Delivery(*row) for row in rows]

    def delivered(self, id: str) -> None:
        """A webhook needs no further attempt."""
        self._connection.execute("DELETE FROM delivery WHERE id = ?", (id,))
        self._empty_log()

    def postpone(self, id: str, seconds: float) -> None:
        """An attempt failed; the next one is after so many seconds."""
        self._connection.execute(
            "UPDATE delivery SET attempts = attempts + 1, next_at = ? WHERE id = ?", (self._clock() + seconds, id)
        )

    def _empty_log(self) -> None:
        """Empty the write-ahead log, which has texts and secrets also after their rows are deleted."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _jobs(self, where: str, values: Iterable[Any]) -> list[Job]:
        rows = self._connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM job WHERE {where}", tuple(values))
        return [Job(*row) for row in rows]
