"""Speech of the rows of Arrow tables: one function, which Ray Data, Spark and a plain loop over Parquet files call.

A table has a column `text`, and `id`, which is a text and the row's own. It may have `voice`, `language`, `seed` and
`instructions`. Each row becomes one row of `SCHEMA`: its speech as a WAV file, or an `error`. A seed is made of the id
if the row has none, so a row that is spoken again sounds the same. `asked` is a digest of all that a row asks for; one
whose digest has changed is spoken again.
"""

from __future__ import annotations

import io
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from voice_clone_client import (
    BrokenStream,
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    Incomplete,
    Internal,
    Overloaded,
    VoiceCloneError,
    WavWriter,
)
from voice_clone_client.callers import on_behalf_of

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("wav", pa.binary()),
        pa.field("seconds", pa.float64()),
        pa.field("error", pa.string()),
        pa.field("asked", pa.string()),
    ]
)
OPTIONS = ("voice", "language", "seed", "instructions")
TRANSIENT = (BrokenStream, ConnectionFailed, DeadlineExceeded, Overloaded)
FAULTS = 3  # of a server at one row, which may be the cause
ATTEMPTS = 3  # seeds that are tried if the model misses the end of a row that has no seed of its own
LEAST_WAIT, LONGEST_WAIT = 0.2, 15.0  # seconds between two attempts
LOOK_SECONDS = 0.2  # Ctrl-C that another thread received wakes the main one only now
STRAY_SECONDS = 60.0  # a file that was not written to for so long is left by a run that was killed


@dataclass(frozen=True)
class Bulk:
    """How rows are spoken.

    Attributes:
        servers: addresses of Triton servers with the same voices, separated by commas. If one of them is away, the
            others are asked.
        voice: of rows without one.
        model: the family; needed where a server has several.
        at_once: rows that each worker speaks at the same time. Workers x `at_once` should be at most what the servers
            make at once and queue.
        patience: seconds for which a row is tried again while no server can make it.
        token: of servers that have one.
    """

    servers: str
    voice: str | None = None
    model: str | None = None
    at_once: int = 4
    patience: float = 600.0
    token: str | None = None


class Speaker:
    """Speaks tables, with connections that it keeps: a callable class, as `ray.data.Dataset.map_batches` takes it.

    Args:
        bulk: how.
    """

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk
        self._client = Client(bulk.servers, model=bulk.model, token=bulk.token)
        self._pool = ThreadPoolExecutor(bulk.at_once)
        self._stopped = threading.Event()

    def __call__(self, table: pa.Table) -> pa.Table:
        """The results of a table's rows, in their order.

        Raises:
            ValueError: two rows have one id.
        """
        rows = table.to_pylist()
        if twice := [id for id, count in Counter(str(row["id"]) for row in rows).items() if count > 1]:
            raise ValueError(f"two rows have the id {twice[0]!r}; each row needs its own")
        made = [self._pool.submit(self._result, row) for row in rows]
        while wait(made, LOOK_SECONDS).not_done:
            pass
        return pa.Table.from_pylist([each.result() for each in made], SCHEMA)

    def close(self) -> None:
        """Close the connections. Rows under way end at once."""
        self._stopped.set()
        self._client.close()
        self._pool.shutdown(cancel_futures=True)

    def _result(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of `SCHEMA`. Whatever fails, the other rows go on."""
        result = {"id": str(row["id"]), "asked": asked(row, self._bulk)}
        try:
            with on_behalf_of(urgency="batch"):  # listeners go first
                return result | self._patiently(row)
        except Exception as error:
            said = str(error) or type(error).__name__
            return result | {"error": f"{error.slug}: {said}" if isinstance(error, VoiceCloneError) else said}

    def _patiently(self, row: Mapping[str, Any]) -> dict[str, Any]:
        until, pause, faults, attempt = time.monotonic() + self._bulk.patience, LEAST_WAIT, 0, 1
        while True:
            try:
                return self._spoken(row, attempt)
            except Incomplete:
                attempt += 1
                if attempt > ATTEMPTS or row.get("seed") is not None:
                    raise
                continue
            except (*TRANSIENT, Internal) as error:
                faults += isinstance(error, Internal)
                if faults == FAULTS or time.monotonic() > until or self._stopped.is_set():
                    raise
            self._stopped.wait(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_WAIT)

    def _spoken(self, row: Mapping[str, Any], attempt: int) -> dict[str, Any]:
        digest = blake2b(f"{attempt} {row['id']}".encode(), digest_size=4).digest()
        options = {"seed": int.from_bytes(digest, "big") >> 1, **options_of(row, self._bulk)}
        file = io.BytesIO()
        with self._client.speak_long(row["text"], **options, hold=True) as speech:
            samples, rate = speech.read()
            if not speech.whole:
                raise Incomplete(speech.finish_reason)
        with WavWriter(file, rate) as wav:
            wav.write(samples)
        return {"wav": file.getvalue(), "seconds": len(samples) / rate}


def options_of(row: Mapping[str, Any], bulk: Bulk) -> dict[str, Any]:
    """The options with which a row is spoken: its own, and the voice of `bulk` where it has none."""
    return {"voice": bulk.voice, **{name: row[name] for name in OPTIONS if row.get(name) is not None}}


def asked(row: Mapping[str, Any], bulk: Bulk) -> str:
    """The digest of all that a row asks for."""
    text = json.dumps([str(row["id"]), row["text"], bulk.model, options_of(row, bulk)], sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def speak_tables(tables: Iterable[pa.Table], bulk: Bulk) -> Iterator[pa.Table]:
    """The results of each table, as it is done. The next one is not asked for before: nothing unwanted is made."""
    speaker = Speaker(bulk)
    try:
        yield from map(speaker, tables)
    finally:
        speaker.close()


def files_of(folder: Path) -> Iterator[Path]:
    """The Parquet files of results in a folder, the oldest first.

    Other files are left out, and so are those that a process was killed at.
    """
    found = list[tuple[int, Path]]()
    for path in folder.glob("**/*.parquet"):
        if not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts):
            try:
                names = pq.read_schema(path).names
            except (pa.ArrowInvalid, OSError):
                continue
            if {*SCHEMA.names} <= {*names}:
                found.append((path.stat().st_mtime_ns, path))
    return (path for _, path in sorted(found))


class Found(NamedTuple):
    """A row of results."""

    asked: str
    failed: bool
    path: Path
    number: int
    """Of the row in its file."""


def found_in(folder: Path) -> dict[str, Found]:
    """The results in a folder by their ids. Of several, it is what was asked last, with its speech if there is any."""
    known: dict[str, Found] = {}
    for path in files_of(folder):
        rows = pq.read_table(path, columns=["id", "asked", "error"]).to_pylist()
        for number, row in enumerate(rows):
            last = known.get(row["id"])
            if last is None or last.failed or last.asked != row["asked"]:
                known[row["id"]] = Found(row["asked"], row["error"] is not None, path, number)
    return known


def spoken(folder: Path) -> set[str]:
    """What was asked of the rows whose speech is in a folder of results. Those with an error are to be made again."""
    return {each.asked for each in found_in(folder).values() if not each.failed}


def results(folder: Path) -> Iterator[pa.Table]:
    """The results in a folder, each id once: engines may write rows twice. An error counts if there is no speech."""
    rows: dict[Path, list[int]] = {}
    for each in found_in(folder).values():
        rows.setdefault(each.path, []).append(each.number)
    for path, numbers in rows.items():
        yield pq.read_table(path, schema=SCHEMA).take(sorted(numbers))


def left(table: pa.Table, known: Collection[str], bulk: Bulk) -> pa.Table:
    """The rows of a table whose speech is not known."""
    rows = table.select([name for name in ("id", "text", *OPTIONS) if name in table.column_names]).to_pylist()
    return table.filter(pa.array([asked(row, bulk) not in known for row in rows], pa.bool_()))


def tables_of(source: Path, rows: int) -> Iterator[pa.Table]:
    """A Parquet file, or the files of a folder, in pieces of at most `rows` rows."""
    found = ds.dataset(source, format="parquet", partitioning="hive")
    schemas = [found.schema, *(each.physical_schema for each in found.get_fragments())]
    for batch in found.replace_schema(pa.unify_schemas(schemas)).to_batches(batch_size=rows):
        yield pa.Table.from_batches([batch])


def speak_files(source: Path, target: Path, bulk: Bulk, rows: int = 64) -> None:
    """Speak what is missing of a Parquet file, or of a folder of them: the plain loop. Each piece of at most `rows`
    rows becomes a file of `target`.

    A piece that is done is on the disk when the next one begins, so a killed loop goes on there.
    """
    target.mkdir(parents=True, exist_ok=True)
    for stray in target.glob(".*.parquet"):
        if time.time() - stray.stat().st_mtime > STRAY_SECONDS:  # a killed loop has left it
            stray.unlink(missing_ok=True)
    known = spoken(target)
    tables = (left(table, known, bulk) for table in tables_of(source, rows))
    for made in speak_tables((table for table in tables if len(table)), bulk):
        name = f"{time.time_ns()}-{threading.get_native_id()}.parquet"
        aside = target / f".{name}"
        pq.write_table(made, aside)
        os.replace(aside, target / name)
