"""One change of the database, from the lock on the counter to the commit."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from voice_clone.errors import Internal, Overloaded
from voice_clone.speakers.postgres.history import counter_of
from voice_clone.speakers.postgres.rows import (
    AMENDED,
    ChangeRow,
    id_of,
    insert_blobs,
    name_of,
    packed_artifacts,
    written,
)
from voice_clone.speakers.postgres.sessions import Connection, Sessions
from voice_clone.speakers.record import ArtifactId, SpeakerRecord
from voice_clone.speakers.store import InDoubt, Made

DOUBT_SECONDS = 10.0  # for which the database is asked whether it committed
_KEPT = 10_000  # changes whose tokens are remembered
_DELETE_BLOBS = "DELETE FROM voice_clone.blob WHERE token = (SELECT token FROM voice_clone.voice WHERE id = %s)"
_PUT = """
    INSERT INTO voice_clone.voice (id, generation, change, token, record) VALUES (%s, %s, %s, %s, %s::jsonb)
    ON CONFLICT (id) DO UPDATE SET (generation, change, token, record)
    = (EXCLUDED.generation, EXCLUDED.change, EXCLUDED.token, EXCLUDED.record)
"""
# What a newer program wrote into the record, or into that of a style, stays.
_AMEND = """
    UPDATE voice_clone.voice SET generation = %s, change = %s, record = (record - '{beside,since,cosines}'::text[])
        || %s::jsonb
        || CASE WHEN record->'styles' IS NULL THEN '{}' ELSE jsonb_build_object('styles', (
            SELECT jsonb_object_agg(key, (value - '{beside,since,cosines}'::text[]) || COALESCE(%s::jsonb->key, '{}'))
            FROM jsonb_each(record->'styles')
        )) END
    WHERE id = %s RETURNING token, record::text
"""
_REMOVE = """
    UPDATE voice_clone.voice SET change = %s, token = NULL, record = NULL WHERE id = %s RETURNING generation
"""
_DELETE_OTHERS = """
    DELETE FROM voice_clone.blob WHERE token = %s AND model_type = %s AND mode = %s AND NOT fingerprint = ANY(%s)
"""


class Transaction:
    """Changes of speakers. While it is open, no other server changes any; the connection must be in a transaction.

    Attributes:
        rows: the changes.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        found = connection.execute("SELECT change, epoch FROM voice_clone.counter WHERE one FOR UPDATE").fetchall()
        self._last, _ = counter_of(found)
        self.rows: list[ChangeRow] = []

    @property
    def next(self) -> int:
        """The number of the next change, and of a generation that begins with it."""
        return self._last + 1

    def put(self, record: SpeakerRecord, token: UUID, clips: Mapping[str, bytes]) -> None:
        """Write a speaker in the place of an older one; its blobs have this token, and its clips by their styles these
        SHA-256.
        """
        change, key = max(self.next, record.generation), id_of(record.key)
        self._connection.execute(_DELETE_BLOBS, (key,), prepare=True)
        text = written(record, token, clips)
        self._connection.execute(_PUT, (key, record.generation, change, token, text), prepare=True)
        self._count(ChangeRow(key, change, record.generation, token, text))

    def amend(self, record: SpeakerRecord, made: Mapping[ArtifactId, Made]) -> None:
        """Write artifacts of a speaker, and its record, which says what else stays of these artifacts.

        Raises:
            Internal: the speaker's row is lost.
        """
        key, change, values = id_of(record.key), self.next, json.loads(record.to_json())
        styles = {style: _amended(clip) for style, clip in values.get("styles", {}).items()}
        parameters = (record.generation, change, json.dumps(_amended(values)), json.dumps(styles), key)
        rows = self._connection.execute(_AMEND, parameters, prepare=True).fetchall()
        if not rows:
            raise Internal(f"the stored voice {record.name!r} is damaged; upload it again, with the option `replace`")
        [(token, text)] = rows
        assert isinstance(token, UUID) and isinstance(text, str)
        for artifact, (tensors, info) in made.items():
            name, clip = name_of(artifact, info.fingerprint), record.clip(artifact.style)
            insert_blobs(self._connection, token, {name: packed_artifacts(token, name, tensors)})
            kept = [each[artifact].fingerprint for each in (clip.artifacts, clip.beside) if artifact in each]
            self._connection.execute(_DELETE_OTHERS, (token, *name[:2], kept), prepare=True)
        self._count(ChangeRow(key, change, record.generation, token, text))

    def remove(self, found: bytes) -> None:
        """Delete the speaker of this id with its blobs."""
        change = self.next
        self._connection.execute(_DELETE_BLOBS, (found,), prepare=True)
        rows = self._connection.execute(_REMOVE, (change, found), prepare=True).fetchall()
        generation = rows[0][0] if rows else 0
        assert isinstance(generation, int)
        self._count(ChangeRow(found, change, generation, None, None))

    def finish(self, token: UUID) -> None:
        """Write the counter, and the token by which `settle` finds the transaction."""
        run = self._connection.execute
        run("UPDATE voice_clone.counter SET change = %s", (self._last,), prepare=True)
        run("INSERT INTO voice_clone.written (token, change) VALUES (%s, %s)", (token, self._last), prepare=True)
        run("DELETE FROM voice_clone.written WHERE change < %s", (self._last - _KEPT,), prepare=True)

    def _count(self, row: ChangeRow) -> None:
        self.rows.append(row)
        self._last = row.change


def _amended(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record, or of that of a style, that a change of artifacts replaces."""
    return {field: values[field] for field in AMENDED if field in values}


def settle(sessions: Sessions, token: UUID) -> bool:
    """Wait until the transaction of this token is over, and return whether it was committed.

    A transaction whose connection is lost may still be on its way. It holds the counter until it is over.

    Raises:
        InDoubt: the database does not answer in time.
    """
    until = time.monotonic() + DOUBT_SECONDS
    while time.monotonic() < until:
        try:
            with sessions.one(until - time.monotonic()) as connection:
                connection.execute("BEGIN")
                connection.execute("SELECT FROM voice_clone.counter FOR UPDATE")
                found = connection.execute("SELECT FROM voice_clone.written WHERE token = %s", (token,))
                return bool(found.rowcount)
        except Overloaded:
            time.sleep(0.1)
    raise InDoubt("the voice store went away in the middle of the change; look whether it was made, then try again")
