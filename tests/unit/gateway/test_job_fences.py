"""Two gateways that change the same rows of a database of jobs at the same time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest
from voice_clone_gateway.jobs import keeper
from voice_clone_gateway.jobs.files import JobFiles
from voice_clone_gateway.jobs.postgres import PIECE, PostgresDatabase
from voice_clone_gateway.jobs.sentences import SentenceStore
from voice_clone_gateway.jobs.tables import Job, JobTables, Lost, Result, Status
from voice_clone_gateway.settings import Settings

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.jobs_double import ASKED, JOBS, Talking
from tests.support.waiting import until

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


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_a_gateway_that_was_paused_keeps_no_file(address: str, status: Status) -> None:
    """Another one has made the job meanwhile, or it was ended: what the first one writes then does not count."""

    async def run() -> bytes | None:
        paused, other = (JobFiles(Settings(jobs_database=address)) for _ in range(2))
        for files in (paused, other):
            await files.open()
        made(paused.tables)
        job = paused.tables.claim("o")
        await paused.leave()
        taken = other.tables.claim("o")
        assert job is not None and taken is not None
        other.part_of("job").write_bytes(b"b" * (PIECE + 1))
        paused.part_of("job").write_bytes(b"a" * 100)
        if status == "completed":
            await other.keep_result(taken)
            assert not other.part_of("job").exists()
        await other.aside(other.tables.end, taken, Result(status), {"id": "e"}, 1e6, True)
        for late, files in ((job, paused), (taken, other)):
            files.part_of("job").write_bytes(b"a" * 100)
            with pytest.raises(Lost):
                await files.keep_result(late)
        file = await other.open_result("job")
        content = None if file is None else file.read(0, 3)
        assert file is None or file.size == PIECE + 1
        for files in (paused, other):
            await files.close()
        return content

    assert asyncio.run(run()) == {"completed": b"bbb", "cancelled": None}[status]


def test_a_job_that_is_cancelled_while_its_file_is_kept_has_it_or_none(
    serve: Serve, talking: Talking, address: str, here: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, keep = threading.Event(), PostgresDatabase.keep_result

    def slow(database: PostgresDatabase, job: str, begin: int) -> int | None:
        reached.set()
        time.sleep(1.0)
        return keep(database, job, begin)

    monkeypatch.setattr(PostgresDatabase, "keep_result", slow)
    first, second = (serve(talking.server.url, jobs_database=address) for _ in range(2))
    for http in (first, second):
        until(lambda http=http: http.get(JOBS).status_code == 200)
    job = first.post(JOBS, json=ASKED).json()
    assert reached.wait(20)
    status = second.post(f"{JOBS}/{job['id']}/cancel").json()["status"]
    assert status in ("cancelled", "completed")  # whichever comes first
    time.sleep(2.0)  # what is under way
    assert here.run("SELECT job FROM piece").fetchall() == ([] if status == "cancelled" else [(job["id"],)])


def test_a_long_statement_does_not_keep_a_gateway_from_saying_that_it_works(
    serve: Serve, talking: Talking, address: str, here: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of its jobs is taken over by another gateway meanwhile."""
    waiting, shrink = threading.Event(), PostgresDatabase.shrink

    def long(database: PostgresDatabase) -> None:
        waiting.set()
        database.run("SELECT pg_sleep(7)")
        shrink(database)

    monkeypatch.setattr(keeper, "SWEEP", 0.5)
    talking.pause = 0.2
    http = serve(talking.server.url, jobs_database=address, job_parallel=1)
    until(lambda: http.get(JOBS).status_code == 200)
    text = " ".join(f"The captain of ship {number} sold it." for number in range(60))
    job = http.post(JOBS, json={**ASKED, "input": text}).json()
    until(lambda: talking.server.speeches)
    monkeypatch.setattr(PostgresDatabase, "shrink", long)
    other = JobTables(here, 10, "other")
    other.beat()
    assert waiting.wait(20)
    for _ in range(30):
        assert other.waiting() == []
        time.sleep(0.2)
    assert http.get(f"{JOBS}/{job['id']}", timeout=60).json()["status"] == "in_progress"
