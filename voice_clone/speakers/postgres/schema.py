"""The tables, and the migrations that make them. `tools/voice_store migrate` runs those that are missing.

    counter     one row: the number of the last change, and the epoch (see `history`). A change of speakers locks it
    voice       a speaker, by the SHA-256 of its key. A deleted one leaves its number of generation, and nothing else
    blob        its clip (model_type, mode and fingerprint are empty) and its artifacts, as safetensors bytes
    written     tokens of the latest changes: a writer that got no answer to a commit looks for its token
    version     the steps taken

A change of a speaker takes the next number. The counter's row is locked before a change is decided and until it is
committed, so changes become visible in the order of their numbers: a server that has seen number n has seen all before.
"""

from __future__ import annotations

from psycopg import errors, sql
from typing_extensions import LiteralString

from voice_clone.errors import Internal
from voice_clone.speakers.postgres.sessions import Connection

_LOCK = 0x766F6963  # of an advisory lock: one migration at a time
_STEPS: tuple[LiteralString, ...] = (
    """
    CREATE TABLE voice_clone.counter (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        change bigint NOT NULL,
        epoch bigint NOT NULL
    ) WITH (fillfactor = 10);
    INSERT INTO voice_clone.counter (change, epoch) VALUES (0, 1);
    CREATE TABLE voice_clone.voice (
        id bytea PRIMARY KEY,
        generation bigint NOT NULL,
        change bigint NOT NULL UNIQUE,
        token uuid UNIQUE,
        record jsonb,
        CHECK ((record IS NULL) = (token IS NULL))
    );
    CREATE TABLE voice_clone.blob (
        token uuid NOT NULL,
        model_type text NOT NULL,
        mode text NOT NULL,
        fingerprint text NOT NULL,
        data bytea NOT NULL,
        digest bytea NOT NULL,
        PRIMARY KEY (token, model_type, mode, fingerprint)
    );
    ALTER TABLE voice_clone.blob ALTER COLUMN data SET STORAGE EXTERNAL; -- clips and codes do not get smaller
    CREATE TABLE voice_clone.written (token uuid PRIMARY KEY, change bigint NOT NULL);
    CREATE INDEX ON voice_clone.written (change);
    """,
)
VERSION = len(_STEPS)


def migrate(connection: Connection, app: str | None = None, reader: str | None = None) -> int:
    """Take the missing steps, all or none. Returns: their number.

    Args:
        app: a role that may then read and change voices.
        reader: a role that may then read them.

    Raises:
        Internal: the tables are of a newer version than this program.
        psycopg.Error: the database refuses.
    """
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        connection.execute("CREATE SCHEMA IF NOT EXISTS voice_clone")
        connection.execute("CREATE TABLE IF NOT EXISTS voice_clone.version (step integer PRIMARY KEY)")
        before = version(connection)
        if before > VERSION:
            raise Internal(f"the voice store has the tables of version {before}; this program knows {VERSION}")
        for step in range(before, VERSION):
            connection.execute(_STEPS[step])
            connection.execute("INSERT INTO voice_clone.version VALUES (%s)", (step + 1,))
        for role, rights in ((app, "SELECT, INSERT, UPDATE, DELETE"), (reader, "SELECT")):
            if role is not None:
                name = sql.Identifier(role)
                connection.execute(sql.SQL("GRANT USAGE ON SCHEMA voice_clone TO {}").format(name))
                grant = sql.SQL("GRANT {} ON ALL TABLES IN SCHEMA voice_clone TO {}")
                connection.execute(grant.format(sql.SQL(rights), name))
    return VERSION - before


def version(connection: Connection) -> int:
    """The steps that were taken; 0 for an empty database."""
    try:
        with connection.transaction():
            [(step,)] = connection.execute("SELECT coalesce(max(step), 0) FROM voice_clone.version").fetchall()
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        return 0
    assert isinstance(step, int)
    return step


def check(connection: Connection) -> None:
    """Check that the tables are those that this program needs. A newer version keeps what an older one needs.

    Raises:
        Internal: they are not; says what to do.
    """
    if version(connection) < VERSION:
        raise Internal(
            f"the voice store lacks tables of version {VERSION}; run voice-clone-server voice-store migrate first"
        )
