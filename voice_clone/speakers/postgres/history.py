"""What this server's memory knows of the database, and how old that is.

Memory knows all changes up to a number. Several connections deliver rows at once, each with all changes that were new
when it was asked. Rows may come late, but do no harm: a row is dropped if memory already knows a later change.

A database that was restored from a backup, or a standby that took over without all changes, has an older counter, or
another history (PostgreSQL counts them as timelines). Then memory is invalid, and everything is read again. The first
server that notices raises the counter above every number that was used, under a new epoch. So the others notice, too,
and no generation is used twice.

A look asks the database for new changes. A request must see every change that was acknowledged before it began, so it
needs a look that began later than itself; all requests that wait meanwhile share the next look. When the database does
not answer, requests stop waiting for it: memory serves until it is too old, while a thread looks again and again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from voice_clone.errors import Internal, Overloaded, VoiceCloneError
from voice_clone.speakers.postgres.rows import COLUMNS, ChangeRow, read
from voice_clone.speakers.postgres.sessions import CLOSED, Connection
from voice_clone.speakers.record import MAX_GENERATION, SpeakerRecord
from voice_clone.speakers.store import Change, Listener
from voice_clone.speakers.tensor_file import Damaged

log = logging.getLogger(__name__)

# A number that no counter can have reached is damaged, and is ignored.
NEWER = f"""
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
_BATCH = 200  # records on their way at once: the database ends a transaction in which it hears nothing for 5 s


def origin(connection: Connection) -> str:
    """The identity of a history: the cluster and its timeline."""
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
        resets: how often all was read again because the database had another history.
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
        """Read all records; `listener` gets what changes later."""
        with self._lock:
            self._origin = origin(connection)
            self._raise_counter(connection)
            records = self._read_all(connection)
            self._listener = listener
        return list(records.values())

    @property
    def count(self) -> int:
        """The number of speakers that memory knows."""
        return len(self._keys)

    def look(self, connection: Connection, found_origin: str) -> bool:
        """Bring memory up to what the database is now; False, and no change, if it has another history."""
        return found_origin == self._origin and self.absorb(connection)

    def start_over(self, connection: Connection, found_origin: str) -> None:
        """Read all again, and report what is other than before: the database has another history."""
        with self._lock:
            self._raise_counter(connection)
            before = set(self._keys.values())
            records = self._read_all(connection)
            log.error("the voice store has another history than before: all voices were read again")
            self.resets += 1
            self._origin = found_origin
            gone = [Change(key, None) for key in before - records.keys()]
            self._listener([*gone, *(Change(key, record) for key, record in records.items())])

    def absorb(self, connection: Connection) -> bool:
        """Report what is newer to the listener; False, and no report, if the database has another history."""
        known, epoch = self._known, self._epoch
        rows: list[Any] = connection.execute(NEWER, (known,), prepare=True, binary=True).fetchall()
        number, now = counter_of(rows)
        if now != epoch or number < max(known, rows[-1][3] or 0):
            return False
        if rows[0][2] is not None:
            with self._lock:
                if self._epoch == epoch:  # else all was read again meanwhile, and these are outdated
                    self._report([ChangeRow(*row[2:]) for row in rows])
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

    def add(self, rows: Sequence[ChangeRow]) -> None:
        """Report changes that this server is committing, or has committed, unless a look has reported them already."""
        with self._lock:
            if rows and self._known == rows[0].change - 1:
                self._report(rows)

    def _report(self, rows: Sequence[ChangeRow]) -> None:
        changes = []
        for row in rows:
            if row.change > self._known:
                changes += self._change(row)
                self._known = row.change
        if changes:
            self._listener(changes)

    def _change(self, row: ChangeRow) -> list[Change]:
        """The change that a row stands for; none if the speaker came and went between two looks."""
        record = self._record(row)
        key = self._keys.pop(row.id, None) if record is None else record.key
        if key is None:
            return []
        if record is not None:
            self._keys[row.id] = key
        return [Change(key, record, self._own.get(row.change, False))]

    def _raise_counter(self, connection: Connection) -> None:
        """Raise the counter above every number that is known to have been given."""
        [(highest,)] = connection.execute(_HIGHEST).fetchall()
        assert isinstance(highest, int)
        least = max(self._known, highest)
        raised = connection.execute(
            "UPDATE voice_clone.counter SET change = %s, epoch = epoch + 1 WHERE change < %s", (least, least)
        )
        if raised.rowcount:
            log.error("the counter of the voice store was behind its voices, and is %d now", least)

    def _read_all(self, connection: Connection) -> dict[str, SpeakerRecord]:
        """All records by their keys, at one moment; from then on, changes count.

        If it fails, memory knows the same speakers as before: the next try must find out which of them are gone.
        """
        records, keys = {}, {}
        self.unreadable = set()
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            found = connection.execute("SELECT change, epoch FROM voice_clone.counter WHERE one").fetchall()
            known, epoch = counter_of(found)
            with connection.cursor("records", binary=True) as cursor:
                cursor.itersize = _BATCH
                cursor.execute(_ALL)
                for values in cursor:
                    row = ChangeRow(*values)  # type: ignore[arg-type]  # the columns of a query have no types
                    record = self._record(row)
                    if record is not None:
                        records[record.key] = record
                        keys[row.id] = record.key
        self._known, self._epoch, self._keys = known, epoch, keys
        return records

    def _record(self, row: ChangeRow) -> SpeakerRecord | None:
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


IDLE_PERIOD, AWAY_PERIOD = 1.0, 0.25  # seconds between looks without a request


class Freshness:
    """Looks at the changes of the store on request, and once a second.

    Args:
        look: brings memory up to what the store was when it was called; one call at a time.
        bound: seconds for which memory serves without the store; 0: not at all.
    """

    def __init__(self, look: Callable[[], None], bound: float) -> None:
        self._look = look
        self._bound = bound
        self._turn = threading.Condition()
        self._looking = False
        self._begun = self._ended = 0  # looks
        self._fresh_at = time.monotonic()
        self._away = False
        self.failures = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-changes", daemon=True)
        self._thread.start()

    @property
    def away(self) -> bool:
        """Whether the store did not answer the last look."""
        return self._away

    @property
    def age(self) -> float:
        """Seconds since memory was exact."""
        return time.monotonic() - self._fresh_at

    @property
    def looks(self) -> int:
        """Their number."""
        return self._ended

    def ensure(self) -> None:
        """Return when memory has all changes that were made before this call, or may serve without.

        Raises:
            Overloaded: the store does not answer, and memory is older than it may be; or it is closed.
        """
        if not self._away:
            self._take_part()
        if self._away and self.age >= self._bound:
            raise Overloaded("the voice store cannot be reached; try again later")

    def close(self) -> None:
        """Stop looking. Returns when no look is under way: its connection may then be closed."""
        self._closing.set()
        self._thread.join()
        with self._turn:
            while self._looking:
                self._turn.wait()

    def _take_part(self) -> None:
        """Look, or wait for a look that began after this call did."""
        with self._turn:
            wanted, waited = self._begun + 1, self._looking
            while self._looking and self._ended < wanted:
                self._turn.wait()
            if self._ended >= wanted or (waited and self._away):  # a look has just waited for it in vain
                return
            if self._closing.is_set():
                raise Overloaded(CLOSED)
            self._looking = True
            self._begun += 1
        began, away = time.monotonic(), True
        try:
            self._look()
            away = False
        except Exception as error:  # whatever a damaged database makes of a look
            if not self._away:
                unknown = not isinstance(error, VoiceCloneError)
                log.warning(
                    "the voice store is away, memory serves for %g s at most: %s", self._bound, error, exc_info=unknown
                )
        finally:
            with self._turn:
                if away:
                    self.failures += 1
                else:
                    self._fresh_at = began
                    if self._away:
                        log.info("the voice store is back")
                self._away = away
                self._looking = False
                self._ended = self._begun
                self._turn.notify_all()

    def _run(self) -> None:
        while not self._closing.wait(AWAY_PERIOD if self._away else IDLE_PERIOD):
            if self._away or self.age > IDLE_PERIOD:
                try:
                    self._take_part()
                except Overloaded:  # it is closed
                    return
                except Exception:
                    log.exception("the changes of the voice store could not be read")
