"""Speech of the rows of Arrow tables: one function, which Ray Data, Spark and a plain loop over Parquet files call.

A table has a column `text`, and `id`, which is a text and the row's own. It may have `voice`, `language`, `seed` and
`instructions`. Each row becomes one row of `SCHEMA`: its speech as a WAV file, or an `error`. A seed is made of the id
if the row has none, so a row that is spoken again sounds the same.
"""

from __future__ import annotations

import io
import os
import random
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
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
    ]
)
OPTIONS = ("voice", "language", "seed", "instructions")
TRANSIENT = (BrokenStream, ConnectionFailed, DeadlineExceeded, Overloaded)
FAULTS = 3  # of a server at one row, which may be the cause
ATTEMPTS = 3  # seeds that are tried if the model misses the end of a row that has no seed of its own
LEAST_WAIT, LONGEST_WAIT = 0.2, 15.0  # seconds between two attempts


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

    def __call__(self, table: pa.Table) -> pa.Table:
        """The results of a table's rows, in their order."""
        return pa.Table.from_pylist([*self._pool.map(self._result, table.to_pylist())], SCHEMA)

    def close(self) -> None:
        """Close the connections."""
        self._pool.shutdown()
        self._client.close()

    def _result(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of `SCHEMA`. Whatever fails, the other rows go on."""
        try:
            with on_behalf_of(urgency="batch"):  # listeners go first
                return self._patiently(row)
        except Exception as error:
            said = str(error) or type(error).__name__
            return {
                "id": str(row["id"]),
                "error": f"{error.slug}: {said}" if isinstance(error, VoiceCloneError) else said,
            }

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
                if faults == FAULTS or time.monotonic() > until:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_WAIT)

    def _spoken(self, row: Mapping[str, Any], attempt: int) -> dict[str, Any]:
        id, own = str(row["id"]), {name: row[name] for name in OPTIONS if row.get(name) is not None}
        digest = blake2b(f"{attempt} {id}".encode(), digest_size=4).digest()
        asked: dict[str, Any] = {"voice": self._bulk.voice, "seed": int.from_bytes(digest, "big") >> 1, **own}
        file = io.BytesIO()
        with self._client.speak_long(row["text"], **asked, hold=True) as speech:
            samples, rate = speech.read()
            if not speech.whole:
                raise Incomplete(speech.finish_reason)
        with WavWriter(file, rate) as wav:
            wav.write(samples)
        return {"id": id, "wav": file.getvalue(), "seconds": len(samples) / rate}


def speak_tables(tables: Iterable[pa.Table], bulk: Bulk) -> Iterator[pa.Table]:
    """The results of each table, as it is done. The next one is not asked for before: nothing unwanted is made."""
    speaker = Speaker(bulk)
    try:
        yield from map(speaker, tables)
    finally:
        speaker.close()


def files_of(folder: Path) -> Iterator[Path]:
    """The whole Parquet files of results in a folder. Those that a process was killed at are left out."""
    for path in sorted(folder.glob("**/*.parquet")):
        if not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts):
            try:
                pq.read_metadata(path)
            except (pa.ArrowInvalid, OSError):
                continue
            yield path


def spoken(folder: Path) -> set[str]:
    """The ids of the rows whose speech is in a folder of results. Those with an error are to be made again."""
    found: set[str] = set()
    for path in files_of(folder):
        rows = pq.read_table(path, columns=["id", "error"])
        found.update(rows.filter(rows["error"].is_null())["id"].to_pylist())
    return found


def results(folder: Path) -> Iterator[pa.Table]:
    """The results in a folder, each id once: engines may write rows twice. An error counts if there is no speech."""
    good, seen = spoken(folder), set[str]()
    for path in files_of(folder):
        rows = pq.read_table(path, schema=SCHEMA)
        kept = []
        for id, error in zip(rows["id"].to_pylist(), rows["error"].to_pylist(), strict=True):
            kept.append(id not in seen and (error is None or id not in good))
            if kept[-1]:
                seen.add(id)
        yield rows.filter(pa.array(kept, pa.bool_()))


def left(table: pa.Table, known: Collection[str]) -> pa.Table:
    """The rows of a table whose speech is not known."""
    return table.filter(pa.array([str(id) not in known for id in table["id"].to_pylist()], pa.bool_()))


def speak_file(source: Path, target: Path, bulk: Bulk, rows: int = 64) -> None:
    """Speak what is missing of a Parquet file: the plain loop. Each piece of so many rows becomes a file of `target`.

    A piece that is done is on the disk when the next one begins, so a killed loop goes on there.
    """
    target.mkdir(parents=True, exist_ok=True)
    known = spoken(target)
    batches = pq.ParquetFile(source).iter_batches(rows)
    tables = (left(pa.Table.from_batches([batch]), known) for batch in batches)
    for made in speak_tables((table for table in tables if len(table)), bulk):
        name = f"{time.time_ns()}-{threading.get_native_id()}.parquet"
        aside = target / f".{name}"
        pq.write_table(made, aside)
        os.replace(aside, target / name)
