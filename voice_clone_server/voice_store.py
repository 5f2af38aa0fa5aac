"""The database in which a fleet keeps its voices.

VOICE_CLONE_VOICE_STORE is its address, as for the servers. `migrate` needs a role that may make tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg
from voice_clone_program.arguments import Parser

from voice_clone.errors import InvalidArgument, VoiceCloneError
from voice_clone.server_settings import SpeakerCacheSettings
from voice_clone.settings import Settings
from voice_clone.speakers.disk.store import VOICES, FileStore
from voice_clone.speakers.draft import of_file
from voice_clone.speakers.flight import Superseded
from voice_clone.speakers.postgres import schema
from voice_clone.speakers.postgres.rows import id_of
from voice_clone.speakers.postgres.sessions import checked_address
from voice_clone.speakers.postgres.store import PostgresStore
from voice_clone.speakers.tensor_file import Damaged
from voice_clone_server.program import program
from voice_clone_server.steps import step


def main() -> int:
    parser = Parser(prog=program("voice_store"), description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    migrating = commands.add_parser("migrate", help="make the tables, or bring them up to this version")
    migrating.add_argument("--app", help="a role that may then read and change voices: that of the servers")
    migrating.add_argument("--reader", help="a role that may then read them: that of talker and code2wav")
    copying = commands.add_parser("copy", help="copy the voices of a stopped server's directory, generations kept")
    copying.add_argument("directory", type=Path)
    copying.add_argument(
        "--replace",
        action="store_true",
        help="replace voices of the same names and earlier generations (default: refuse)",
    )
    commands.add_parser("check", help="read every voice, and compare each with its checksum")
    arguments = parser.parse_args()
    try:
        settings = SpeakerCacheSettings.of(Settings({}))
        if not settings.voice_store:
            parser.error("set VOICE_CLONE_VOICE_STORE to the address of the database")
        conninfo = checked_address(settings.voice_store, settings.voice_store_tls == "verify")
        if arguments.command == "migrate":
            with psycopg.connect(conninfo, autocommit=True) as connection:
                steps = schema.migrate(connection, arguments.app, arguments.reader)
            print(f"{steps} steps taken; the tables are of version {schema.VERSION}")
            return 0
        if arguments.command == "copy":
            with step("copying the voices"):
                return copy(arguments.directory, conninfo, arguments.replace)
        with step("reading the voices"):
            return check(conninfo)
    except (VoiceCloneError, psycopg.Error) as error:
        print(f"{program('voice_store')}: {error}", file=sys.stderr)
        return 1


def copy(directory: Path, conninfo: str, replace: bool) -> int:
    """Copy the voices of a directory, but for those of which the database has or had the same or a later generation.

    Returns: 0, or 1 if a name was taken or a voice is damaged.

    Raises:
        InvalidArgument: it is no directory of voices.
        VoiceCloneError: it is in use, or the database fails.
    """
    if not (directory / VOICES).is_dir():
        raise InvalidArgument(f"{directory} is no directory of voices: it has no folder {VOICES}")
    source, target = FileStore(directory), PostgresStore(conninfo)
    try:
        registered = {id_of(record.key): record for record in target.restore(lambda changes: None)}
        there = {key: record.generation for key, record in registered.items()} | target.deleted()
        copied = left_out = taken = damaged = 0
        for record in source.restore(lambda changes: None):
            if there.get(id_of(record.key), -1) >= record.generation:
                left_out += 1
                continue
            if id_of(record.key) in registered and not replace:
                name = registered[id_of(record.key)].name
                print(f"the name {name!r} is taken; --replace replaces its voice", file=sys.stderr)
                taken += 1
                continue
            try:
                target.adopt([of_file(*source.read_all(record))])
                copied += 1
            except Damaged as error:
                print(f"{record.name} is damaged and is not copied: {error}", file=sys.stderr)
                damaged += 1
    finally:
        source.close()
        target.close()
    refused = f", {taken} names are taken" if taken else ""
    print(f"{copied} voices copied, {left_out} were there or were deleted, {damaged} are damaged{refused}")
    return 1 if damaged or taken else 0


def check(conninfo: str) -> int:
    """Read all voices, and return 0, or 1 if one is damaged."""
    store = PostgresStore(conninfo)
    damaged, changed = 0, set[str]()
    try:
        records = store.restore(lambda changes: changed.update(change.key for change in changes))
        for record in records:
            try:
                store.read_all(record)
            except Damaged as error:
                print(f"{record.name} is damaged: {error}", file=sys.stderr)
                damaged += 1
            except Superseded:
                store.refresh()
                if record.key not in changed:  # no server replaced or deleted it
                    print(
                        f"{record.name} is damaged: its row is missing, or is that of another speaker", file=sys.stderr
                    )
                    damaged += 1
        unreadable = store.counters()["unreadable"]
    finally:
        store.close()
    print(f"{len(records) + unreadable} voices, {damaged + unreadable} damaged")
    damaged += unreadable
    return 1 if damaged else 0


if __name__ == "__main__":
    sys.exit(main())
