"""Jobs in a PostgreSQL database, which the gateways of a fleet share.

Speech and files of completed jobs are in the database, too, so a fleet needs no folder that all its gateways see. A
file is made in a folder for temporary files, and kept in pieces.

Each use of the connection has a deadline of this process's own: a database that is paused keeps connections open and
answers nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from voice_clone_client import InvalidArgument
from voice_clone_program.database_address import checked_address

from .database import TABLES, VERSION, DatabaseFailed, Rows
from .scratch import Scratch, remove_left

log = logging.getLogger(__name__)

SECONDS = 10.0
"""Within which a statement or a transaction is over."""
PIECE = 1 << 20
"""Bytes of a piece of a file."""
_TICK = 0.2  # seconds between two looks at the deadline
_WORDS = {
    "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "integer": "BIGINT",
    "real": "DOUBLE PRECISION",
    "strict": "",
    "rowless": "",
}
# Speech is compressed already. What belongs to a row is deleted with it, also what comes too late.
_CONTENTS = """
CREATE TABLE content (
    address TEXT PRIMARY KEY REFERENCES sentence (address) ON DELETE CASCADE, data BYTEA NOT NULL
);
CREATE TABLE piece (
    job TEXT NOT NULL REFERENCES job (id) ON DELETE CASCADE, begins BIGINT NOT NULL,
    data BYTEA NOT NULL, PRIMARY KEY (job, begins)
);
ALTER TABLE content ALTER data SET STORAGE EXTERNAL;
ALTER TABLE piece ALTER data SET STORAGE EXTERNAL;
CREATE TABLE form (version BIGINT NOT NULL);
"""
# The database ends what a paused gateway left open, since that would keep others from writing.
_GREETING = (
    "SET search_path = voice_clone_jobs; SET idle_in_transaction_session_timeout = '5s'; SET lock_timeout = '8s'; "
    "SET statement_timeout = '9s'; SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; "
    "SET tcp_keepalives_count = 3"
)


class PostgresDatabase:
    """See `Database`.

    Args:
        address: of the database.
        tls: whether one on another machine must prove its identity.

    Raises:
        ValueError: see `checked_address`.
    """

    shared = True

    def __init__(self, address: str, tls: bool) -> None:
        setting = "VOICE_CLONE_GATEWAY_JOBS_DATABASE"
        self._address = checked_address(address, setting, f"{setting}_TLS=off" if tls else None)
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._until: float | None = None  # when the use of the connection must be over
        self._closed: threading.Event | None = None
        self._parts: Scratch | None = None

    def open(self) -> None:
        """See `Database`; raises ValueError if the tables are of another version."""
        if self._closed is None:
            self._closed = threading.Event()
            remove_left()
            self._parts = Scratch()
            threading.Thread(target=self._watch, args=(self._closed,), name="jobs deadline", daemon=True).start()
        with self.transaction("tables"):
            if self.run("SELECT to_regclass('voice_clone_jobs.form')").fetchone() == (None,):
                # An administrator may have made the schema, and a role that has it need not be allowed to make one.
                if self.run("SELECT to_regnamespace('voice_clone_jobs')").fetchone() == (None,):
                    self.run("CREATE SCHEMA voice_clone_jobs")
                for statement in (TABLES.format(**_WORDS) + _CONTENTS).split(";\n"):
                    if statement.strip():
                        self.run(statement)
                self.run("INSERT INTO form VALUES (?)", (VERSION,))
            found = self.run("SELECT version FROM form").fetchone()
        if found != (VERSION,):
            raise ValueError(
                f"the jobs in the database have the form {found[0]}, and this gateway knows {VERSION} alone"
            )

    def close(self) -> None:
        if self._closed is not None:
            self._closed.set()
        if self._parts is not None:
            self._parts.remove()
        self._closed = self._parts = None
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def run(self, statement: str, values: Sequence[Any] = ()) -> Rows:
        with self._using() as connection:
            return connection.execute(statement.replace("?", "%s").encode(), values)

    def run_all(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._using() as connection:
            connection.cursor().executemany(statement.replace("?", "%s").encode(), rows)

    @contextmanager
    def transaction(self, turn: str = "") -> Iterator[None]:
        with self._using() as connection, connection.transaction():
            if turn:
                self.run("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (f"voice_clone_jobs {turn}",))
            yield

    def now(self) -> float:
        [now] = self.run("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        return float(now)

    def scrub(self) -> None:
        """Deleted rows stay in the database's files until it cleans up, which it does by itself."""

    def shrink(self) -> None:
        """The database does it by itself."""

    def write_sentence(self, address: str, data: bytes) -> None:
        self.run("INSERT INTO content VALUES (?, ?)", (address, data))

    def read_sentence(self, address: str) -> bytes:
        found = self.run("SELECT data FROM content WHERE address = ?", (address,)).fetchone()
        return b"" if found is None else bytes(found[0])

    def remove_sentences(self, addresses: Sequence[str]) -> None:
        """They go with their rows."""

    def part_of(self, job: str) -> Path:
        assert self._parts is not None
        return self._parts.path / f"{job}.part"

    def keep_result(self, job: str, begin: int) -> int | None:
        with self.part_of(job).open("rb") as file:
            data = os.pread(file.fileno(), PIECE, begin)
        text = "INSERT INTO piece VALUES (?, ?, ?) ON CONFLICT (job, begins) DO UPDATE SET data = excluded.data"
        self.run(text, (job, begin, data))
        if len(data) == PIECE:
            return begin + PIECE
        self.run("DELETE FROM piece WHERE job = ? AND begins > ?", (job, begin))  # of an earlier attempt
        return None

    def open_result(self, job: str) -> _Pieces | None:
        [size] = self.run("SELECT sum(length(data)) FROM piece WHERE job = ?", (job,)).fetchone()
        return None if size is None else _Pieces(self, job, int(size))

    def remove_result(self, job: str) -> None:
        self.run("DELETE FROM piece WHERE job = ?", (job,))

    @contextmanager
    def _using(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """The connection, which is made if there is none, until its deadline."""
        if self._until is not None:  # within a transaction
            assert self._connection is not None
            yield self._connection
            return
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(self._address, autocommit=True)
                self._until = time.monotonic() + SECONDS
                self._connection.execute(_GREETING)
            self._until = time.monotonic() + SECONDS
            yield self._connection
        except psycopg.DataError as error:  # it does answer
            text = "the request has a text that the database of jobs does not keep; leave out the character NUL"
            raise InvalidArgument(text) from error
        except psycopg.Error as error:
            text = str(error).strip().partition("\n")[0]
            log.info("the database of jobs does not do what it was asked: %s: %s", type(error).__name__, text)
            self._drop()
            raise DatabaseFailed("the database of jobs does not answer; try again later") from error
        finally:
            self._until = None

    def _watch(self, closed: threading.Event) -> None:
        """Cut the connection at its deadline."""
        while not closed.wait(_TICK):
            until, connection = self._until, self._connection
            if until is not None and connection is not None and time.monotonic() > until:
                with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
                    line.shutdown(socket.SHUT_RDWR)


class _Pieces:
    """A `ResultFile`."""

    def __init__(self, database: PostgresDatabase, job: str, size: int) -> None:
        self._database, self._job, self.size = database, job, size

    def read(self, begin: int, most: int) -> bytes:
        place = begin % PIECE
        found = self._database.run(
            "SELECT substring(data FROM ?::int FOR ?::int) FROM piece WHERE job = ? AND begins = ?",
            (place + 1, most, self._job, begin - place),
        ).fetchone()
        return b"" if found is None else bytes(found[0])

    def close(self) -> None:
        """Nothing is open."""
