"""Two gateways that change the same rows of a database of jobs at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest
from voice_clone_gateway.jobs.postgres import PostgresDatabase
from voice_clone_gateway.jobs.sentences import SentenceStore
from voice_clone_gateway.jobs.tables import Job, JobTables

pytestmark = pytest.mark.thorough


@pytest.fixture
def address(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture
def here(address: str) -> Iterator[PostgresDatabase]:
    with closing(PostgresDatabase(address, tls=True)) as database:
        database.open()
        yield database


@pytest.fixture
def there(here: PostgresDatabase, address: str) -> Iterator[PostgresDatabase]:
    with closing(PostgresDatabase(address, tls=True)) as database:
        database.open()
        yield database


def made(tables: JobTables) -> Job:
    job = Job("job", "o", "f", None, "wav", "[]", None, None, "r", 1, 1, 0.0)
    return tables.create(job, "{}", ("{}", {"v"}), None, "")


def test_what_is_dropped_and_what_is_needed_take_turns(here: PostgresDatabase, there: PostgresDatabase) -> None:
    """What a job of another gateway needs from now on is dropped before that job looks for it, or stays."""
    tables, store = JobTables(here, 10, "here"), SentenceStore(here, 1e9, 1e9)
    kept = "a" * 64
    store.put(made(tables), kept, {"voice_digest": "v"}, np.zeros(100, np.float32), 24000)
    dropping = threading.Thread(target=SentenceStore(there, 0, 1e9).evict)
    with here.transaction():
        tables.need("job", [kept])
        dropping.start()
        dropping.join(0.5)
    dropping.join()
    assert set(store.known([kept])) == {kept}


def test_a_job_that_is_deleted_needs_nothing(here: PostgresDatabase, there: PostgresDatabase) -> None:
    """Also if another gateway deletes it while its needs are written."""
    tables = JobTables(here, 10, "here")
    made(tables)
    deleting = threading.Thread(target=JobTables(there, 10, "there").delete, args=("job",))
    with here.transaction():
        tables.need("job", ["a" * 64])
        deleting.start()
        deleting.join(0.5)
    deleting.join()
    assert tables.get("job") is None and here.run("SELECT job FROM need").fetchall() == []
    tables.need("job", ["a" * 64])
    assert here.run("SELECT job FROM need").fetchall() == []
