"""Where jobs lie: a file of SQLite and a folder, which one gateway owns, or a database of PostgreSQL, which the
gateways of a fleet share.

Both are used by the same statements (`tables`, `sentences`), in words that both know. What differs is here: how they
are opened and locked, and where speech and files of completed jobs are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from voice_clone_client import Overloaded

VERSION = 3
"""Of the tables."""
TABLES = """
CREATE TABLE job (
    number {serial},
    id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, status TEXT NOT NULL, family TEXT NOT NULL, voice TEXT,
    format TEXT NOT NULL, warnings TEXT NOT NULL, webhook_url TEXT, webhook_secret TEXT, request_id TEXT NOT NULL,
    mark TEXT, sentences {integer} NOT NULL, characters {integer} NOT NULL, made {integer} NOT NULL,
    done {integer} NOT NULL, created_at {real} NOT NULL, started_at {real}, completed_at {real}, expires_at {real},
    error TEXT, seconds {real}, size {integer}, digest TEXT, media_type TEXT, segments TEXT,
    batch TEXT, custom_id TEXT, gateway TEXT, attempt {integer} NOT NULL
){strict};
CREATE TABLE job_text (job TEXT PRIMARY KEY, request TEXT NOT NULL, plan TEXT){strict};
CREATE INDEX job_of_owner ON job (owner, number);
CREATE INDEX job_by_status ON job (status, expires_at);
CREATE INDEX job_of_batch ON job (batch, number);
CREATE TABLE batch (
    number {serial}, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, file TEXT NOT NULL, metadata TEXT,
    created_at {real} NOT NULL, cancelled_at {real}
){strict};
CREATE INDEX batch_of_owner ON batch (owner, number);
CREATE TABLE file (
    number {serial}, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, name TEXT NOT NULL, size {integer} NOT NULL,
    created_at {real} NOT NULL, data TEXT NOT NULL
){strict};
CREATE INDEX file_of_owner ON file (owner, number);
CREATE TABLE need (job TEXT NOT NULL, address TEXT NOT NULL, PRIMARY KEY (job, address)){rowless};
CREATE INDEX need_of_address ON need (address);
CREATE TABLE job_voice (job TEXT NOT NULL, voice TEXT NOT NULL, PRIMARY KEY (job, voice)){rowless};
CREATE INDEX job_of_voice ON job_voice (voice);
CREATE TABLE idempotency (
    owner TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL, job TEXT NOT NULL, created_at {real} NOT NULL,
    PRIMARY KEY (owner, key)
){rowless};
CREATE TABLE delivery (
    id TEXT PRIMARY KEY, job TEXT NOT NULL, owner TEXT NOT NULL, url TEXT NOT NULL, secret TEXT NOT NULL,
    body TEXT NOT NULL, attempts {integer} NOT NULL, created_at {real} NOT NULL, next_at {real} NOT NULL
){strict};
CREATE INDEX delivery_of_owner ON delivery (owner, next_at);
CREATE TABLE sentence (
    address TEXT PRIMARY KEY, owner TEXT NOT NULL, voice TEXT NOT NULL, info TEXT NOT NULL, seconds {real} NOT NULL,
    size {integer} NOT NULL, digest TEXT NOT NULL, used_at {real} NOT NULL
){rowless};
CREATE INDEX sentence_by_use ON sentence (used_at);
CREATE INDEX sentence_of_voice ON sentence (voice);
CREATE TABLE listed (voice TEXT PRIMARY KEY, seen_at {real} NOT NULL){rowless};
CREATE TABLE gateway (id TEXT PRIMARY KEY, seen_at {real} NOT NULL){rowless};
"""


class DatabaseFailed(Overloaded):
    """The database does not answer, or its disk is full. Nothing was changed, or it is not known whether it was."""


class Rows(Protocol):
    """What a statement found."""

    @property
    def rowcount(self) -> int:
        """Rows that it changed."""

    def fetchone(self) -> Any:
        """The next row, or None."""

    def fetchall(self) -> list[Any]:
        """All rows that are left."""


class ResultFile(Protocol):
    """The file of a completed job, for reading."""

    size: int

    def read(self, begin: int, most: int) -> bytes:
        """Bytes of it; fewer if it ends, or was deleted."""

    def close(self) -> None:
        """It is not read any more."""


class Database(Protocol):
    """A database of jobs. All methods but `part_of` are for one thread, and raise DatabaseFailed
    or OSError.

    Attributes:
        shared: whether several gateways work in it at the same time.
    """

    shared: bool

    def open(self) -> None:
        """Open it; makes its tables if they are missing.

        Raises:
            BlockingIOError: another gateway owns it.
            Exception: it cannot be read.
        """

    def close(self) -> None:
        """Close it, also for the time being."""

    def run(self, statement: str, values: Sequence[Any] = ()) -> Rows:
        """Run a statement; `?` stands for a value."""

    def run_all(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run it for each row of values."""

    def transaction(self, turn: str = "") -> AbstractContextManager[None]:
        """All statements of the block happen, and are on the disk, or none does. Blocks with the same turn, other than
        "", follow one another, in whichever gateway they are."""

    def now(self) -> float:
        """Seconds since 1970, by a clock that all its gateways share."""

    def scrub(self) -> None:
        """See to it that what was deleted is in none of its files any more, as far as it can."""

    def shrink(self) -> None:
        """Give space back that is free."""

    def write_sentence(self, address: str, data: bytes) -> None:
        """Keep the speech of a sentence whose row is new; in the transaction of that."""

    def read_sentence(self, address: str) -> bytes:
        """It; empty if it is lost."""

    def remove_sentences(self, addresses: Sequence[str]) -> None:
        """Delete them, after their rows."""

    def part_of(self, job: str) -> Path:
        """Where the file of a job is made."""

    def keep_result(self, job: str, begin: int) -> int | None:
        """Keep that file, or a piece of it from `begin` on; in a transaction that holds the job.

        Returns: where the next piece begins; None: all is kept.
        """

    def open_result(self, job: str) -> ResultFile | None:
        """The file of a job; None: it is lost."""

    def remove_result(self, job: str) -> None:
        """Delete it, if it is there."""
