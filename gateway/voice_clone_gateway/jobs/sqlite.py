"""Jobs in a folder that one gateway owns: tables of SQLite, files of speech.

    lock            held by the gateway
    jobs.sqlite3    the tables
    sentences/      speech, by its address
    results/        files of completed jobs

A transaction is on the disk when it ends: what was acknowledged survives a loss of power, too.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .database import TABLES, VERSION, DatabaseFailed, Rows

_WORDS = {
    "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "integer": "INTEGER",
    "real": "REAL",
    "strict": " STRICT",
    "rowless": " STRICT, WITHOUT ROWID",
}


class SQLiteDatabase:
    """See `Database`.

    Args:
        folder: of it.
        clock: seconds since 1970.
    """

    shared = False

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._sentences, self._results = folder, folder / "sentences", folder / "results"
        self._clock = clock
        self._lock: int | None = None
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """See `Database`; raises ValueError if its tables are of another version."""
        if self._lock is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for each in (self._sentences, self._results):
            each.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / "jobs.sqlite3"
        path.touch(mode=0o600)
        path.chmod(0o600)
        connection = self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of new files; those of old ones keep their size
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")  # of what was spoken nothing remains in the file
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            message = f"the jobs in jobs_dir have the form {version}, and this gateway knows the form {VERSION} alone"
            raise ValueError(message)
        if not version:
            tables = TABLES.format(**_WORDS)
            connection.executescript(f"BEGIN; {tables} PRAGMA user_version = {VERSION}; COMMIT;")
        self._remove_strays()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
        self._connection = self._lock = None

    def run(self, statement: str, values: Sequence[Any] = ()) -> Rows:
        with _errors():
            return self._opened.execute(statement, values)

    def run_all(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        with _errors():
            self._opened.executemany(statement, rows)

    @contextmanager
    def transaction(self, turn: str = "") -> Iterator[None]:
        with _errors(), self._opened as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield

    def now(self) -> float:
        return self._clock()

    def scrub(self) -> None:
        self.run("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # the log has rows also after they are deleted

    def shrink(self) -> None:
        with _errors():
            self._opened.executescript("PRAGMA incremental_vacuum(5000)")  # 20 MB at a time, which takes a moment
        self.scrub()

    def write_sentence(self, address: str, data: bytes) -> None:
        path = self._path(address)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        with open(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _rename_durably(part, path)

    def read_sentence(self, address: str) -> bytes:
        try:
            return self._path(address).read_bytes()
        except OSError:
            return b""

    def remove_sentences(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            self._path(address).unlink(missing_ok=True)

    def part_of(self, job: str) -> Path:
        return self._results / f"{job}.part"

    def keep_result(self, job: str, begin: int) -> int | None:
        _rename_durably(self.part_of(job), self._results / job)
        return None

    def open_result(self, job: str) -> _File | None:
        try:
            return _File(self._results / job)
        except OSError:
            return None

    def remove_result(self, job: str) -> None:
        (self._results / job).unlink(missing_ok=True)

    @property
    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise DatabaseFailed("the jobs of this gateway are closed; it is stopping")
        return self._connection

    def _path(self, address: str) -> Path:
        return self._sentences / address[:2] / address

    def _remove_strays(self) -> None:
        """Remove files without a row: those of a gateway that was killed."""
        known = {address for (address,) in self.run("SELECT address FROM sentence").fetchall()}
        known |= {job for (job,) in self.run("SELECT id FROM job WHERE digest IS NOT NULL").fetchall()}
        for path in (*self._sentences.glob("??/*"), *self._results.iterdir()):
            if path.name not in known:
                path.unlink(missing_ok=True)


class _File:
    """A `ResultFile`, which stays readable if it is deleted meanwhile."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, begin: int, most: int) -> bytes:
        return os.pread(self._file.fileno(), most, begin)

    def close(self) -> None:
        self._file.close()


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise DatabaseFailed("the jobs of this gateway cannot be read or written; try again later") from error


def _rename_durably(part: Path, path: Path) -> None:
    """Give a file that is on the disk its name, so that the name is, too."""
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    with suppress(OSError):  # some file systems cannot
        os.fsync(folder)
    os.close(folder)
