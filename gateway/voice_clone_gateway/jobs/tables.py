"""The jobs in their database; for the one thread that works in it.

A gateway that makes a job has claimed it: the job has its name, and the number of the attempt. While a gateway works it
says so once a second; when it has not for some seconds, others claim its jobs. It may only have been paused, so each of
its changes counts under the condition that the attempt is still the job's (`Lost`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from voice_clone_client.types import Mark

from .database import Database
from .deliveries import Deliveries, Delivery

Status = Literal["queued", "in_progress", "completed", "failed", "cancelled"]
LIVE = ("queued", "in_progress")
KEY_SECONDS = 24 * 3600.0
"""For which an Idempotency-Key is known."""

LISTED_SECONDS = 7 * 24 * 3600.0
"""For which it is known when a voice was there."""

LEASE = 5.0
"""Seconds after its last beat in which a gateway's jobs are free for others."""
NEEDS = "needs"
"""The lock of the rows that say which speech is needed; what drops other speech takes it, too."""
MOST_ENDED = 10_000
"""Jobs of an owner that have ended, and are kept; without those of batches."""
MOST_EVENTS = 1000
"""Webhooks of an owner that wait."""


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
    """JSON of a list; of one that is not planned yet, too: see `JobTables.plan`."""
    webhook_url: str | None
    webhook_secret: str | None
    """Both are gone when it has ended; its `Delivery` has them until it is delivered."""
    request_id: str
    """Of the request that made it."""
    sentences: int
    """0: it is not planned yet."""
    characters: int
    created_at: float
    mark: Mark | None = None
    """`Key.mark` of the key that made it."""
    status: Status = "queued"
    made: int = 0
    """Sentences that the server spoke for this job."""
    done: int = 0
    """Sentences that are there, when it was last written."""
    started_at: float | None = None
    completed_at: float | None = None
    """When it ended, in whatever way."""
    expires_at: float | None = None
    error: str | None = None
    """JSON: message, code."""
    seconds: float | None = None
    """How long its sound is, when it was last written."""
    size: int | None = None
    digest: str | None = None
    """Of its file; None: there is none, or no more."""
    media_type: str | None = None
    segments: str | None = None
    """JSON: where its parts are."""
    batch: str | None = None
    """Of which it is a line."""
    custom_id: str | None = None
    """Of that line."""
    attempt: int = 0
    """How often it was claimed."""

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.status in LIVE


_COLUMNS = [each.name for each in fields(Job)]


@dataclass(frozen=True)
class Result:
    """What has become of a job."""

    status: Status
    error: Mapping[str, Any] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Columns with what there is of it."""


class Lost(Exception):
    """The job has ended, or another gateway makes it."""


class TooMany(Exception):
    """The owner has as many jobs as it may have: that have not ended, that have, or whose webhooks wait; it says so."""


class KeyReused(Exception):
    """The Idempotency-Key is that of another request."""


LIVE_ROW = "status IN ('queued', 'in_progress')"
_HELD = "gateway IN (SELECT id FROM gateway WHERE seen_at > ?)"  # by one that works


class JobTables:
    """The jobs, and what belongs to them.

    Args:
        database: of them.
        most: jobs of an owner that have not ended.
        gateway: name of this one, which no other one ever had.

    Attributes:
        deliveries: the webhooks.
    """

    def __init__(self, database: Database, most: int, gateway: str) -> None:
        self._database = database
        self._most, self._gateway = most, gateway
        self.deliveries = Deliveries(database)

    def create(self, job: Job, request: str, plan: tuple[str, Iterable[str]] | None, key: str | None, body: str) -> Job:
        """Keep a new job; or return the one that the same request made before.

        Args:
            request: its JSON.
            plan: its JSON, and the digests of its voices; None: it is made later.
            key: Idempotency-Key of the request; None: it has none.
            body: digest of the request.

        Raises:
            KeyReused, TooMany.
        """
        db = self._database
        with db.transaction(f"new job of {job.owner}"):
            if key is not None and (known := self.made_before(job.owner, key, body)) is not None:
                return known
            self.check_count(job.owner)
            if job.webhook_url is not None and self.count("delivery", "owner = ?", job.owner) >= MOST_EVENTS:
                raise TooMany(
                    f"{MOST_EVENTS} webhooks of this key are not delivered yet, its maximum; wait until one is"
                )
            self.insert([(job, request)])
            if plan is not None:
                self._write_plan(job.id, *plan)
            if key is not None:
                db.run(
                    "INSERT INTO idempotency VALUES (?, ?, ?, ?, ?) ON CONFLICT (owner, key) DO UPDATE "
                    "SET body = excluded.body, job = excluded.job, created_at = excluded.created_at",
                    (job.owner, key, body, job.id, db.now()),
                )
        return job

    def check_count(self, owner: str) -> None:
        """See whether an owner may have one more job, or a batch, which counts as one. Raises: TooMany."""
        own = self._database.run(
            f"SELECT count(DISTINCT coalesce(batch, id)) FROM job WHERE owner = ? AND {LIVE_ROW}", (owner,)
        )
        if own.fetchone()[0] >= self._most:
            raise TooMany(f"{self._most} jobs of this key have not ended, its maximum; wait until one has")
        if self.count("job", f"owner = ? AND batch IS NULL AND NOT {LIVE_ROW}", owner) >= MOST_ENDED:
            text = "have ended and are kept, its maximum; delete some with DELETE"
            raise TooMany(f"{MOST_ENDED} jobs of this key {text}")

    def insert(self, jobs: Sequence[tuple[Job, str | None]]) -> None:
        """Keep jobs with the JSON of their requests; None: it has ended. In a transaction."""
        columns, places = ", ".join(_COLUMNS), ", ".join("?" * len(_COLUMNS))
        rows = ([getattr(job, name) for name in _COLUMNS] for job, _ in jobs)
        self._database.run_all(f"INSERT INTO job ({columns}) VALUES ({places})", rows)
        texts = [(job.id, request) for job, request in jobs if request is not None]
        self._database.run_all("INSERT INTO job_text (job, request) VALUES (?, ?)", texts)

    def made_before(self, owner: str, key: str, body: str) -> Job | None:
        """The job that an earlier request with this Idempotency-Key made; `body` as of `create`.

        Raises:
            KeyReused: that was another request.
        """
        found = self._database.run(
            "SELECT body, job FROM idempotency WHERE owner = ? AND key = ? AND created_at > ?",
            (owner, key, self._database.now() - KEY_SECONDS),
        ).fetchone()
        if found is None or (job := self.get(found[1])) is None:
            return None
        if found[0] != body:
            raise KeyReused
        return job

    def plan(self, job: Job, plan: str, voices: Iterable[str], about: Mapping[str, Any]) -> None:
        """Keep the plan of a job that has none yet.

        Args:
            about: its columns `sentences`, `characters` and `warnings`.

        Raises:
            Lost.
        """
        with self._database.transaction():
            self._change(job, about)
            self._write_plan(job.id, plan, voices)

    def get(self, id: str) -> Job | None:
        """A job."""
        return next(iter(self.found("id = ?", (id,))), None)

    def page(self, owner: str, limit: int, after: str | None, newest_first: bool) -> list[Job]:
        """Jobs of an owner in the order in which they were made, without those of batches."""
        where, values = page_of("job", owner, limit, after, newest_first)
        return self.found(f"batch IS NULL AND {where}", values)

    def waiting(self) -> list[str]:
        """The owners with jobs that no gateway makes, and could."""
        since = self._database.now() - LEASE
        rows = self._database.run(
            f"SELECT DISTINCT owner FROM job WHERE {LIVE_ROW} AND owner NOT IN "
            f"(SELECT owner FROM job WHERE {LIVE_ROW} AND {_HELD})",
            (since,),
        )
        return [owner for (owner,) in rows.fetchall()]

    def claim(
        self, owner: str, can: Callable[[Job], bool] = lambda job: True, beside: Sequence[Job] = ()
    ) -> Job | None:
        """The job of an owner that this gateway makes from now on; None: there is none, or another one makes one.

        Args:
            can: whether this gateway can make a job; if not, it is left to others.
            beside: those of this owner that it makes already. Beside lines of a batch, others of it are made.
        """
        if beside and beside[0].batch is None:
            return None
        with self._database.transaction(f"claim of {owner}"):
            since = self._database.now() - LEASE
            own = f"owner = ? AND {LIVE_ROW}"
            if self.count("job", f"{own} AND {_HELD} AND gateway <> ?", owner, since, self._gateway):
                return None
            values: list[Any] = [owner]
            if beside:
                own += f" AND batch = ? AND id NOT IN ({', '.join('?' * len(beside))})"
                values += [beside[0].batch, *(job.id for job in beside)]
            found = [job for job in self.found(f"{own} ORDER BY status, number LIMIT 1", values) if can(job)]
            for job in found:
                claimed = self._gateway, job.attempt + 1, job.id
                self._database.run("UPDATE job SET gateway = ?, attempt = ? WHERE id = ?", claimed)
        return replace(found[0], attempt=found[0].attempt + 1) if found else None

    def beat(self) -> None:
        """This gateway works."""
        now = self._database.now()
        text = "INSERT INTO gateway VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at"
        self._database.run(text, (self._gateway, now))
        self._database.run("DELETE FROM gateway WHERE seen_at < ?", (now - 100 * LEASE,))

    def note(self, making: Sequence[tuple[Job, Mapping[str, Any]]]) -> list[str]:
        """Write how far the jobs are that this gateway makes. Returns which of them are not its own any more.

        Args:
            making: these jobs, with the columns that say it.
        """
        lost = list[str]()
        for job, columns in making:
            try:
                self._change(job, columns)
            except Lost:
                lost.append(job.id)
        return lost

    def leave(self) -> None:
        """This gateway stops: its jobs are free."""
        self._database.run("DELETE FROM gateway WHERE id = ?", (self._gateway,))

    def texts_of(self, id: str) -> tuple[str, str | None, set[str]]:
        """JSON of a job's request, that of its plan, if it is planned, and the digests of its voices."""
        found = self._database.run("SELECT request, plan FROM job_text WHERE job = ?", (id,)).fetchone()
        voices = self._database.run("SELECT voice FROM job_voice WHERE job = ?", (id,)).fetchall()
        if found is None:  # it has ended
            raise Lost
        return *found, {voice for (voice,) in voices}

    def hold(self, job: Job) -> None:
        """This gateway makes the job, and does so until the transaction ends. Raises: Lost."""
        self._change(job, {"attempt": job.attempt})

    def need(self, id: str, addresses: Iterable[str]) -> None:
        """A job needs speech under these addresses, too, until it ends; one that has ended needs none."""
        with self._database.transaction(NEEDS):
            # The job does not end, and is not deleted, until these rows are there, so they go with it.
            if self._database.run(f"UPDATE job SET attempt = attempt WHERE id = ? AND {LIVE_ROW}", (id,)).rowcount:
                rows = ((id, address) for address in addresses)
                self._database.run_all("INSERT INTO need VALUES (?, ?) ON CONFLICT (job, address) DO NOTHING", rows)

    def start(self, job: Job) -> None:
        """A job is made from now on. Raises: Lost."""
        since = self._database.now() if job.started_at is None else job.started_at
        self._change(job, {"status": "in_progress", "started_at": since})

    def end(
        self, job: Job, result: Result, event: Mapping[str, Any], keep_seconds: float, by_maker: bool = False
    ) -> Job | None:
        """A job has ended; None: it had ended before, which holds.

        Args:
            event: the body of its webhook, if it has one.
            keep_seconds: for which it is kept.
            by_maker: it counts only while this attempt at the job is its latest.
        """
        db, id = self._database, job.id
        now = db.now()
        values = {
            **result.fields,
            "status": result.status,
            "error": None if result.error is None else json.dumps(result.error),
            "completed_at": now,
            "expires_at": now + keep_seconds,
        }
        with db.transaction():
            names = ", ".join(f"{name} = ?" for name in values)
            where, row = f"id = ? AND {LIVE_ROW}", [*values.values(), id]
            if by_maker:
                where, row = f"{where} AND attempt = ?", [*row, job.attempt]
            if not db.run(f"UPDATE job SET {names} WHERE {where}", row).rowcount:
                return None
            for table in ("need", "job_text"):  # neither is wanted any more
                db.run(f"DELETE FROM {table} WHERE job = ?", (id,))
            ended = self.get(id)
            assert ended is not None
            if ended.webhook_url is not None:
                url, secret = ended.webhook_url, ended.webhook_secret or ""
                self.deliveries.add(Delivery(event["id"], id, ended.owner, url, secret, json.dumps(event), 0, now))
                db.run("UPDATE job SET webhook_url = NULL, webhook_secret = NULL WHERE id = ?", (id,))
        db.scrub()
        return ended

    def held(self, owner: str) -> int:
        """Bytes of the files of an owner: those of its jobs, and those that it sent."""
        jobs = "SELECT coalesce(sum(size), 0) FROM job WHERE owner = ? AND digest IS NOT NULL"
        sent = "SELECT coalesce(sum(size), 0) FROM file WHERE owner = ?"
        return sum(int(self._database.run(each, (owner,)).fetchone()[0]) for each in (jobs, sent))

    def drop_file(self, id: str) -> None:
        """The file of a job is no more."""
        self._database.run("UPDATE job SET digest = NULL WHERE id = ?", (id,))

    def delete(self, id: str) -> None:
        """Forget a job."""
        with self._database.transaction():
            self._database.run("DELETE FROM job WHERE id = ?", (id,))
            for table in ("job_text", "need", "job_voice", "delivery"):
                self._database.run(f"DELETE FROM {table} WHERE job = ?", (id,))
        self._database.scrub()

    def expired(self) -> list[Job]:
        """Jobs whose time is over, of a batch when that of all is; forgets Idempotency-Keys and voices, too."""
        now = self._database.now()
        self._database.run("DELETE FROM idempotency WHERE created_at < ?", (now - KEY_SECONDS,))
        self._database.run("DELETE FROM listed WHERE seen_at < ?", (now - LISTED_SECONDS,))
        later = "SELECT batch FROM job WHERE batch IS NOT NULL AND (expires_at IS NULL OR expires_at >= ?)"
        return self.found(f"expires_at < ? AND (batch IS NULL OR batch NOT IN ({later}))", (now, now))

    def in_voice(self, voice: str) -> list[Job]:
        """All jobs in a voice, by its digest."""
        return self.found("id IN (SELECT job FROM job_voice WHERE voice = ?)", (voice,))

    def voices(self) -> set[str]:
        """The digests of all voices in which something is kept."""
        rows = self._database.run("SELECT voice FROM job_voice UNION SELECT voice FROM sentence").fetchall()
        return {voice for (voice,) in rows if voice}

    def listed(self, voices: Iterable[str]) -> None:
        """The server of this gateway has these voices, by their digests."""
        now = self._database.now()
        text = "INSERT INTO listed VALUES (?, ?) ON CONFLICT (voice) DO UPDATE SET seen_at = excluded.seen_at"
        with self._database.transaction("listed"):
            self._database.run_all(text, [(voice, now) for voice in sorted(voices)])

    def unlisted(self, voices: Iterable[str], seconds: float) -> set[str]:
        """Those of some voices that no gateway's server has had for so long."""
        since = self._database.now() - seconds
        rows = self._database.run("SELECT voice FROM listed WHERE seen_at > ?", (since,)).fetchall()
        return {*voices} - {voice for (voice,) in rows}

    def found(self, where: str, values: Sequence[Any]) -> list[Job]:
        """The jobs for which a condition holds."""
        rows = self._database.run(f"SELECT {', '.join(_COLUMNS)} FROM job WHERE {where}", values).fetchall()
        return [Job(*row) for row in rows]

    def _write_plan(self, id: str, plan: str, voices: Iterable[str]) -> None:
        self._database.run("UPDATE job_text SET plan = ? WHERE job = ?", (plan, id))
        self._database.run_all("INSERT INTO job_voice VALUES (?, ?)", [(id, voice) for voice in voices])

    def _change(self, job: Job, values: Mapping[str, Any]) -> None:
        """Set columns of a job that this gateway makes. Raises: Lost."""
        text = (
            f"UPDATE job SET {', '.join(f'{name} = ?' for name in values)} WHERE id = ? AND attempt = ? AND {LIVE_ROW}"
        )
        if not self._database.run(text, (*values.values(), job.id, job.attempt)).rowcount:
            raise Lost

    def count(self, table: str, where: str, *values: Any) -> int:
        """How many rows of a table there are for which a condition holds."""
        return int(self._database.run(f"SELECT count(*) FROM {table} WHERE {where}", values).fetchone()[0])


def page_of(table: str, owner: str, limit: int, after: str | None, newest_first: bool) -> tuple[str, list[str]]:
    """The condition of a page of an owner's rows of a table, in their order, and its values.

    Args:
        after: the id of the row before them.
    """
    compared, order = ("<", "DESC") if newest_first else (">", "ASC")
    where, values = "owner = ?", [owner]
    if after is not None:
        where += f" AND number {compared} (SELECT number FROM {table} WHERE id = ? AND owner = ?)"
        values += [after, owner]
    return f"{where} ORDER BY number {order} LIMIT {limit:d}", values
