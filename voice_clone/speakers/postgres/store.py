"""Speakers in a PostgreSQL database, which the servers of a fleet share. See `schema` for the tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID, uuid4

from numpy.typing import NDArray

from voice_clone.errors import Internal, Overloaded, VoiceCloneError
from voice_clone.speakers.flight import Superseded
from voice_clone.speakers.postgres import schema
from voice_clone.speakers.postgres.history import Freshness, History, origin
from voice_clone.speakers.postgres.rows import (
    COLUMNS,
    BlobName,
    ChangeRow,
    blobs_of,
    bytes_digest,
    checked_bytes,
    checked_clip,
    digests_of_clips,
    id_of,
    insert_blobs,
    name_of,
    name_of_clip,
    read,
    tensors_of,
)
from voice_clone.speakers.postgres.sessions import (
    CLOSED,
    Claims,
    Connection,
    Full,
    Session,
    Sessions,
    Unreachable,
    Watchdog,
)
from voice_clone.speakers.postgres.transaction import Transaction, settle
from voice_clone.speakers.record import ArtifactId, SpeakerRecord
from voice_clone.speakers.store import MAX_KNOWN_VOICES, InDoubt, Listener, Made
from voice_clone.speakers.tensor_file import Damaged
from voice_clone.speakers.voice_file import Header, file_tensors
from voice_clone.speakers.voice_file import digest as tensor_digest

if TYPE_CHECKING:  # what only reads makes none
    from voice_clone.speakers.draft import Draft

log = logging.getLogger(__name__)

SESSIONS = 4  # connections for reading and writing, besides one for looks and one for locks
START_SECONDS = 300.0  # to read all records
TRANSFER_SECONDS = 10.0  # for which a read or a change waits for the database, besides the time for its bytes
BYTES_A_SECOND = 4e6  # that a connection takes at least
RECORDS_A_SECOND = 500  # that a busy server reads at least
_BLOB = """
    SELECT v.id, v.generation, v.token, v.record->'row', b.data, b.digest
    FROM voice_clone.voice v LEFT JOIN voice_clone.blob b
    ON b.token = v.token AND b.model_type = %s AND b.mode = %s AND b.fingerprint = %s
    WHERE v.id = %s AND v.record IS NOT NULL
"""
_BLOBS = f"""
    SELECT {COLUMNS}, v.record->'row', b.model_type, b.mode, b.fingerprint, b.data, b.digest
    FROM voice_clone.voice v LEFT JOIN voice_clone.blob b ON b.token = v.token
    WHERE v.id = %s AND v.record IS NOT NULL
"""
_DELETED = "SELECT id, generation FROM voice_clone.voice WHERE record IS NULL"

Result = TypeVar("Result")


class PostgresStore:
    """The `Store` of a fleet.

    Args:
        conninfo: the address, checked.
        stale_seconds: for which memory serves while the database is away; 0: not at all.
        timeout: seconds for which a look at the changes waits for the database.

    Attributes:
        timeout: as given.
        looking: the connection for looks at the changes.
        freshness: how old the latest look is.

    Raises:
        Overloaded: it cannot be reached.
        Internal: it lacks tables.
    """

    writes_whole = False

    def __init__(self, conninfo: str, stale_seconds: float = 60.0, timeout: float = 1.0) -> None:
        self.timeout = timeout
        self._watchdog = Watchdog()
        self._sessions = Sessions(conninfo, self._watchdog, SESSIONS)
        self.looking = Session(conninfo, self._watchdog, self._greet)
        self._origin = ""  # of the connection for looks
        self._history = History()
        self._claims = Claims(Session(conninfo, self._watchdog), timeout, lambda: self.freshness.away)
        self._stale_seconds = stale_seconds
        self._closed = False
        self._failures = 0
        try:
            with self.looking.use(TRANSFER_SECONDS) as connection:
                schema.check(connection)
        except BaseException:
            self.looking.end()
            self._watchdog.close()
            raise

    def restore(self, listener: Listener) -> list[SpeakerRecord]:
        with self.looking.use(START_SECONDS) as connection:
            records = self._history.start(connection, listener)
        self.freshness = Freshness(self._look, self._stale_seconds)
        return records

    def refresh(self) -> None:
        self.freshness.ensure()

    def write(self, drafts: Sequence[Draft], approve: Callable[[], None]) -> list[SpeakerRecord]:
        return self._put(drafts, approve, keep_generations=False)

    def deleted(self) -> dict[bytes, int]:
        """The last generation of every speaker that was deleted, by `rows.id_of` its key."""
        with self._sessions.one(START_SECONDS) as connection:
            found: list[Any] = connection.execute(_DELETED, binary=True).fetchall()
        return dict(found)

    def adopt(self, drafts: Sequence[Draft]) -> list[SpeakerRecord]:
        """Write speakers of another store under their generations."""
        return self._put(drafts, lambda: None, keep_generations=True)

    def amend(
        self, made: Mapping[ArtifactId, Made], approve: Callable[[], SpeakerRecord], renew: bool = False
    ) -> SpeakerRecord:
        """As `Store.amend`. Artifacts of two encoders are kept, those of a third one go."""
        size = sum(tensor.nbytes for each in made.values() for tensor in each.tensors.values())

        def change(transaction: Transaction) -> SpeakerRecord:
            newer = approve()
            for artifact, (_, info) in made.items():
                newer = newer.with_artifacts(artifact, info, beside=True)
            if renew:
                newer = newer.renewed(transaction.next, made)
            transaction.amend(newer, made)
            return newer

        return self._change(size, lambda connection: None, change, by_flight=True)

    def remove(self, approve: Callable[[], SpeakerRecord]) -> SpeakerRecord:
        def change(transaction: Transaction) -> SpeakerRecord:
            record = approve()
            transaction.remove(id_of(record.key))
            return record

        return self._change(0, lambda connection: None, change)

    def set_aside(self, approve: Callable[[], SpeakerRecord], reason: str) -> None:
        """Leaves the speaker as it is: what one server cannot read may be sound, and is all that there is of it."""
        log.error("a voice in the store cannot be read and is left as it is: %s", reason)

    def purge(self, key: str) -> None:
        """As `Store.purge`: what is left out because its row is damaged."""
        if id_of(key) in self._history.unreadable:
            self._change(0, lambda connection: None, lambda transaction: transaction.remove(id_of(key)))

    def read_audio(self, record: SpeakerRecord, style: str = "") -> bytes | None:
        _, row, data, digest = self._read(record, name_of_clip(style), record.clip(style).audio_bytes)
        return checked_clip(data, digest, digests_of_clips(row).get(style))

    def read_artifacts(
        self, record: SpeakerRecord, artifact: ArtifactId, fingerprint: str
    ) -> dict[str, NDArray[Any]] | None:
        name = name_of(artifact, fingerprint)
        token, _, data, digest = self._read(record, name)
        return None if data is None else tensors_of(checked_bytes(data, digest), token, name)

    def read_all(self, record: SpeakerRecord) -> tuple[Header, dict[str, NDArray[Any]]]:
        """As `Store.read_all`; without the artifacts of the other encoder."""
        self._check_reachable()
        size = sum(clip.audio_bytes for clip in record.clips.values())
        with self._sessions.one(TRANSFER_SECONDS + size / BYTES_A_SECOND) as connection:
            rows: list[Any] = connection.execute(_BLOBS, (id_of(record.key),), binary=True).fetchall()
        if not rows or rows[0][0] != id_of(record.key) or rows[0][2] != record.generation:
            raise Superseded
        row, digests = ChangeRow(*rows[0][:5]), digests_of_clips(rows[0][5])
        now, token = read(row), rows[0][3]
        found = {BlobName(*each[6:9]): each[9:] for each in rows if each[6] is not None}
        clips, artifacts = dict[str, bytes](), dict[ArtifactId, dict[str, NDArray[Any]]]()
        for style, clip in now.clips.items():
            stored, digest = found.get(name_of_clip(style), (None, None))
            data = checked_clip(stored, digest, digests.get(style))
            clips |= {} if data is None else {style: data}
            for artifact, info in clip.artifacts.items():
                name = name_of(artifact, info.fingerprint)
                if name not in found:
                    raise Damaged("artifacts of the record are missing")
                artifacts[artifact] = tensors_of(checked_bytes(*found[name]), token, name)
        tensors = file_tensors(clips, artifacts)
        shown = replace(now, beside={}, styles={style: replace(clip, beside={}) for style, clip in now.styles.items()})
        return Header(shown, {name: tensor_digest(tensor) for name, tensor in tensors.items()}), tensors

    def claim(self, record: SpeakerRecord, artifact: ArtifactId, fingerprint: str) -> AbstractContextManager[bool]:
        return self._claims.claim(record.key, record.generation, *artifact, fingerprint)

    def counters(self) -> dict[str, Any]:
        return {
            "kind": "postgresql",
            "reachable": not self.freshness.away,
            "age_seconds": round(self.freshness.age, 3),
            "looks": self.freshness.looks,
            "look_failures": self.freshness.failures,
            "resets": self._history.resets,
            "claims_refused": self._claims.refused,
            "unreadable": len(self._history.unreadable),
            "write_failures": self._failures,
        }

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "freshness"):
            self.freshness.close()
        self._claims.close()
        self._sessions.close()
        self.looking.end()
        self._watchdog.close()

    def _greet(self, connection: Connection) -> None:
        self._origin = origin(connection)

    def _look(self) -> None:
        try:
            with self.looking.use(self.timeout) as connection:
                same = self._history.look(connection, self._origin)
            if not same:
                with self.looking.use(self.timeout + self._history.count / RECORDS_A_SECOND) as connection:
                    self._history.start_over(connection, self._origin)
        except Unreachable:
            self._sessions.drop()
            raise

    def _put(self, drafts: Sequence[Draft], approve: Callable[[], None], keep_generations: bool) -> list[SpeakerRecord]:
        tokens = [uuid4() for _ in drafts]
        data = [
            blobs_of(draft.record, token, draft.clips, draft.artifacts)
            for token, draft in zip(tokens, drafts, strict=True)
        ]

        def prepare(connection: Connection) -> None:
            for token, each in zip(tokens, data, strict=True):
                insert_blobs(connection, token, each)

        def change(transaction: Transaction) -> list[SpeakerRecord]:
            approve()
            records = []
            for token, draft in zip(tokens, drafts, strict=True):
                clips = {style: bytes_digest(clip) for style, clip in draft.clips.items()}
                number = draft.record.generation if keep_generations else transaction.next
                records.append(draft.record.of_generation(number))
                transaction.put(records[-1], token, clips)
            return records

        size = sum(len(part) for each in data for part in each.values())
        return self._change(size, prepare, change)

    def _change(
        self,
        size: int,
        prepare: Callable[[Connection], None],
        change: Callable[[Transaction], Result],
        by_flight: bool = False,
    ) -> Result:
        """One transaction. `prepare` writes its `size` bytes before the others are kept from writing."""
        try:
            return self._transaction(size, prepare, change, by_flight)
        except (Unreachable, Full, Internal, InDoubt):
            self._failures += 1
            raise

    def _transaction(
        self,
        size: int,
        prepare: Callable[[Connection], None],
        change: Callable[[Transaction], Result],
        by_flight: bool,
    ) -> Result:
        self._check_reachable()
        token, committing = uuid4(), False
        try:
            with self._sessions.one(TRANSFER_SECONDS + size / BYTES_A_SECOND) as connection:
                connection.execute("BEGIN")
                prepare(connection)
                transaction = Transaction(connection)
                if not self._history.absorb(connection):
                    raise Unreachable("the voice store has just changed; nothing was changed, try again")
                result = change(transaction)
                transaction.finish(token)
                with self._history.committing([row.change for row in transaction.rows], by_flight):
                    committing = True
                    connection.execute("COMMIT")
                    self._history.add(transaction.rows)
        except Unreachable:
            if not committing or not settle(self._sessions, token):
                raise
            self._history.add(transaction.rows)
        return result

    def _read(
        self, record: SpeakerRecord, name: BlobName, size: int = 0
    ) -> tuple[UUID, Any, bytes | None, bytes | None]:
        """Token of the speaker, `row` of its record, and the bytes of this name, about `size`, with their SHA-256.

        Raises:
            Superseded: the database has no such speaker, or another generation of it.
            Damaged: the bytes are those of another speaker.
        """
        self._check_reachable()
        key = id_of(record.key)
        with self._sessions.one(TRANSFER_SECONDS + size / BYTES_A_SECOND) as connection:
            found: list[Any] = connection.execute(_BLOB, (*name, key), prepare=True, binary=True).fetchall()
        if not found or found[0][:2] != (key, record.generation):
            raise Superseded
        [(_, _, token, row, data, digest)] = found
        if isinstance(row, dict) and row.get("token") not in (None, str(token)):
            raise Damaged("the bytes are those of another speaker")
        return token, row, data, digest

    def _check_reachable(self) -> None:
        """Refuse at once what cannot be done."""
        if self._closed:
            raise Overloaded(CLOSED)
        if self.freshness.away:
            raise Unreachable("the voice store cannot be reached; nothing was changed, try again later")


SECONDS = 10.0  # for which the database is waited for
_IDS = "SELECT id FROM voice_clone.voice WHERE record IS NOT NULL ORDER BY change DESC LIMIT %s"
_ORIGINS = "SELECT record->>'generation' FROM voice_clone.voice WHERE record IS NOT NULL"
_ONE = f"""
    SELECT {COLUMNS}, b.fingerprint, b.data, b.digest FROM voice_clone.voice v
    JOIN voice_clone.blob b USING (token) WHERE v.id = %s AND b.model_type = %s AND b.mode = %s
"""


class KnownInDatabase:
    """The `KnownVoices` of a database.

    Args:
        conninfo: the address, checked; its role need only read.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def latest(self, artifact: ArtifactId) -> Iterator[tuple[SpeakerRecord, dict[str, NDArray[Any]]]]:
        watchdog = Watchdog()
        session = Session(self._conninfo, watchdog)
        try:
            with session.use(SECONDS) as connection:
                ids = connection.execute(_IDS, (MAX_KNOWN_VOICES,), binary=True).fetchall()
            for (found,) in ids:
                with session.use(SECONDS) as connection:
                    rows: list[Any] = connection.execute(
                        _ONE, (found, *name_of(artifact, "")[:2]), binary=True
                    ).fetchall()
                yield from _read(rows, artifact)
        except VoiceCloneError as error:
            log.warning("nothing more is made ready from the voice store: %s", error)
        finally:
            session.close()
            watchdog.close()

    def origins(self) -> set[str]:
        """As `KnownVoices.origins`.

        Raises:
            VoiceCloneError: the database cannot be asked.
        """
        watchdog = Watchdog()
        session = Session(self._conninfo, watchdog)
        try:
            with session.use(SECONDS) as connection:
                return {str(found) for (found,) in connection.execute(_ORIGINS).fetchall()}
        finally:
            session.close()
            watchdog.close()


def _read(rows: list[Any], artifact: ArtifactId) -> Iterator[tuple[SpeakerRecord, dict[str, NDArray[Any]]]]:
    """The speaker with the artifacts that were made last, if they can be read."""
    for *columns, fingerprint, data, digest in rows:
        try:
            row = ChangeRow(*columns)
            record = read(row)
            info = record.artifacts.get(artifact)
            if info is not None and info.fingerprint == fingerprint and row.token is not None:
                name = name_of(artifact, fingerprint)
                yield record, tensors_of(checked_bytes(data, digest), row.token, name)
        except Damaged as error:
            log.debug("skipped a voice of the store: %s", error)
