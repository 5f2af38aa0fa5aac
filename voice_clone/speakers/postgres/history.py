"""The changes that memory knows: all up to a number.

Rows come from several connections at once, each with all that was newer than what was known when it was asked for. They
may be told late, but never wrong: what a row tells is dropped if memory knows a later change already.

A database that was restored from a backup, or a standby that took over without having heard of everything, has an older
counter, or another history (PostgreSQL counts them as timelines). Then nothing that memory knows counts: all is read
anew, and who notices first raises the counter above every number that was given, under a new epoch, so that others
notice, too, and no generation is given twice.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from voice_clone.errors import Internal
from voice_clone.speakers.postgres.row import COLUMNS, Row, read
from voice_clone.speakers.postgres.sessions import Connection
from voice_clone.speakers.record import MAX_GENERATION, SpeakerRecord
from voice_clone.speakers.store import Change, Listener
from voice_clone.speakers.voice_file import Damaged

# A number that no counter can have reached is damaged, and counts for nothing.
_NEWER = f"""
    SELECT c.change, c.epoch, {COLUMNS} FROM voice_clone.counter c
    LEFT JOIN voice_clone.voice v ON v.change > %s AND v.change < {MAX_GENERATION} WHERE c.one ORDER BY v.change
"""
_ALL = f"SELECT {COLUMNS} FROM voice_clone.voice v WHERE v.record IS NOT NULL"
_HIGHEST = f"""
    SELECT coalesce(max(greatest(change, generation)), 0) FROM voice_clone.voice
    WHERE change < {MAX_GENERATION} AND generation < {MAX_GENERATION}
"""
_ORIGIN = """
    SELECT system_identifier::text || ' ' || left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system()
"""
_BATCH = 2000  # records on their way at once

log = logging.getLogger(__name__)


def origin(connection: Connection) -> str:
    """What tells one history from another: the cluster and its timeline."""
    [(found,)] = connection.execute(_ORIGIN).fetchall()
    return str(found)


def counter_of(rows: Sequence[Sequence[Any]]) -> tuple[int, int]:
    """The number of the last change and the epoch, at the beginning of the first row of an answer.

    Raises:
        Internal: the database has lost them.
    """
    number, epoch = rows[0][:2] if rows else (None, None)
    if not isinstance(number, int) or not isinstance(epoch, int) or not 0 <= number < MAX_GENERATION:
        raise Internal("the counter of the voice store is damaged; restore the database from its backup")
    return number, epoch


class History:
    """What memory knows of the database. Thread-safe.

    Attributes:
        resets: how often all was read anew because the database had another history.
        unreadable: the speakers, by the ids of their rows, that are left out because their rows are damaged.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listener: Listener = lambda changes: None
        self._known = self._epoch = 0
        self._origin = ""
        self._keys: dict[bytes, str] = {}
        self._own: dict[int, bool] = {}  # numbers that this server is about to commit: whether by a flight
        self.resets = 0
        self.unreadable: set[bytes] = set()

    def start(self, connection: Connection, listener: Listener) -> list[SpeakerRecord]:
        """Read all records; `listener` hears of what changes later."""
        with self._lock:
            self._origin = origin(connection)
            self._raise_counter(connection)
            records = self._read_all(connection)
            self._listener = listener
        return list(records.values())

    def look(self, connection: Connection, found_origin: str) -> None:
        """Bring memory up to what the database is now."""
        if found_origin != self._origin or not self.absorb(connection):
            self._begin_anew(connection, found_origin)

    def absorb(self, connection: Connection) -> bool:
        """Tell the listener what is newer; False if the database has another history: then nothing is told."""
        known, epoch = self._known, self._epoch
        rows: list[Any] = connection.execute(_NEWER, (known,), prepare=True, binary=True).fetchall()
        number, now = counter_of(rows)
        if now != epoch or number < max(known, rows[-1][3] or 0):
            return False
        if rows[0][2] is not None:
            with self._lock:
                if self._epoch == epoch:  # else all was read anew meanwhile, and these are of the past
                    self._tell([Row(*row[2:]) for row in rows])
        return True

    @contextlib.contextmanager
    def committing(self, numbers: Sequence[int], by_flight: bool) -> Iterator[None]:
        """During the body, these numbers may turn up as changes: they are this server's own."""
        with self._lock:
            self._own.update(dict.fromkeys(numbers, by_flight))
        try:
            yield
        finally:
            with self._lock:
                for number in numbers:
                    self._own.pop(number, None)

    def add(self, rows: Sequence[Row]) -> None:
        """Changes that this server is committing, and has committed, unless a look has told of them already."""
        with self._lock:
            if rows and self._known == rows[0].change - 1:
                self._tell(rows)

    def _tell(self, rows: Sequence[Row]) -> None:
        changes = []
        for row in rows:
            if row.change > self._known:
                changes += self._change(row)
                self._known = row.change
        if changes:
            self._listener(changes)

    def _change(self, row: Row) -> list[Change]:
        """What a row tells; nothing if the speaker came and went unseen."""
        record = self._record(row)
        key = self._keys.pop(row.id, None) if record is None else record.key
        if key is None:
            return []
        if record is not None:
            self._keys[row.id] = key
        return [Change(key, record, self._own.get(row.change, False))]

    def _begin_anew(self, connection: Connection, found_origin: str) -> None:
        with self._lock:
            log.error("the voice store has another history than before: all voices are read anew")
            self.resets += 1
            self._raise_counter(connection)
            before = set(self._keys.values())
            self._keys = {}
            records = self._read_all(connection)
            self._origin = found_origin
            gone = [Change(key, None) for key in before - records.keys()]
            self._listener([*gone, *(Change(key, record) for key, record in records.items())])

    def _raise_counter(self, connection: Connection) -> None:
        """Raise the counter above every number that was given, as far as memory and the rows know."""
        [(highest,)] = connection.execute(_HIGHEST).fetchall()
        assert isinstance(highest, int)
        least = max(self._known, highest)
        raised = connection.execute(
            "UPDATE voice_clone.counter SET change = %s, epoch = epoch + 1 WHERE change < %s", (least, least)
        )
        if raised.rowcount:
            log.error("the counter of the voice store was behind its voices, and is %d now", least)

    def _read_all(self, connection: Connection) -> dict[str, SpeakerRecord]:
        """All records by their keys, at one moment; from then on, changes count."""
        records = {}
        self.unreadable = set()
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            found = connection.execute("SELECT change, epoch FROM voice_clone.counter WHERE one").fetchall()
            known, epoch = counter_of(found)
            with connection.cursor("records", binary=True) as cursor:
                cursor.itersize = _BATCH
                cursor.execute(_ALL)
                for values in cursor:
                    row = Row(*values)  # type: ignore[arg-type]  # the columns of a query have no types
                    record = self._record(row)
                    if record is not None:
                        records[record.key] = record
                        self._keys[row.id] = record.key
        self._known, self._epoch = known, epoch
        return records

    def _record(self, row: Row) -> SpeakerRecord | None:
        """The record of a row; None if the speaker was deleted, or cannot be served."""
        self.unreadable.discard(row.id)
        if row.record is None:
            return None
        try:
            return read(row)
        except Damaged as error:
            log.error("the voice in the store with the id %s is left out: %s", row.id.hex()[:16], error)
            self.unreadable.add(row.id)
            return None
