"""The machine of the database dies, and its synchronous standby takes over: no acknowledged voice is lost."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.doubles.fakes import Voices
from tests.support.official.postgres import PostgresServer, running_postgres
from tests.support.waiting import until
from voice_clone.errors import DeadlineExceeded, Overloaded

pytestmark = pytest.mark.long


@pytest.fixture
def standby_of() -> Iterator[list[PostgresServer]]:
    """A primary that waits for its standby, and the standby."""
    with running_postgres(synchronous_standby_names="standby", synchronous_commit="local") as primary:
        primary.create_database("voices")
        standby = PostgresServer()
        try:
            address = f"host=127.0.0.1 port={primary.port} user=postgres application_name=standby"
            standby.run("pg_basebackup", "-D", str(standby.folder / "data"), "-d", address, "-R", "-X", "stream")
            standby.start()
            with psycopg.connect(primary.dsn("postgres"), autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_commit = 'on'")
                connection.execute("SELECT pg_reload_conf()")
            yield [primary, standby]
        finally:
            standby.stop()


def test_a_failover_to_a_synchronous_standby_loses_nothing(standby_of: list[PostgresServer], tmp_path: Path) -> None:
    primary, standby = standby_of
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    dsn = f"postgresql://postgres@{hosts}/voices"

    def is_synchronous() -> bool:
        with psycopg.connect(primary.dsn("postgres")) as connection:
            return connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall() == [("sync",)]

    until(is_synchronous)
    fleet = [Voices(tmp_path, dsn=dsn, timeout=1.0, stale_seconds=0.0, max_speakers=100_000) for _ in range(3)]
    acknowledged: dict[str, int] = {}
    order: list[list[int]] = [[] for _ in fleet]
    doubtful: list[str] = []
    done = threading.Event()

    def write(number: int) -> None:
        turn = 0
        while not done.is_set():
            name, turn = f"v{number}-{turn}", turn + 1
            try:
                generation = fleet[number].upload(name, turn % 50, wait=False)["generation"]
            except Overloaded:
                time.sleep(0.02)
            except DeadlineExceeded:
                doubtful.append(name)
            else:
                acknowledged[name] = generation
                order[number].append(generation)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(len(fleet))]
    try:
        for each in writers:
            each.start()
        until(lambda: len(acknowledged) >= 100)
        primary.kill()
        time.sleep(0.5)
        standby.run("pg_ctl", "promote", "-D", str(standby.folder / "data"))
        before = len(acknowledged)
        until(lambda: len(acknowledged) >= before + 100)
        done.set()
        for each in writers:
            each.join()
        sys.stdout.write(f"\n{before} acknowledged before, {len(acknowledged)} in all, {len(doubtful)} in doubt\n")
        with psycopg.connect(standby.dsn("voices")) as connection:
            rows = connection.execute(
                "SELECT record->>'name', generation FROM voice_clone.voice WHERE record IS NOT NULL"
            ).fetchall()
        there = dict(rows)
        assert acknowledged.items() <= there.items()
        assert set(there) - set(acknowledged) <= set(doubtful)
        assert len(set(acknowledged.values())) == len(acknowledged)
        assert all(generations == sorted(generations) for generations in order)
        for voices in fleet:
            assert len(voices.call("list").result["speakers"]) == len(there)
    finally:
        done.set()
        for voices in fleet:
            voices.cache.close()
