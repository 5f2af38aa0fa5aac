"""Several gateways with the jobs of one database."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from voice_clone_gateway.jobs import job_keys, keeper
from voice_clone_gateway.jobs.keeper import Jobs
from voice_clone_gateway.jobs.postgres import PostgresDatabase
from voice_clone_gateway.jobs.tables import JobTables
from voice_clone_gateway.settings import Settings

from tests.support.doubles.gateway_thread import Serve, serving
from tests.support.doubles.jobs_double import ASKED, ENDED, JOBS, Talking, ended
from tests.support.doubles.triton_double import listening
from tests.support.official.postgres import PostgresServer, running_postgres
from tests.support.waiting import until

pytestmark = pytest.mark.thorough

TEXT = " ".join(f"The captain of ship {number} sold it." for number in range(12))


@pytest.fixture
def join(serve: Serve, talking: Talking, new_database: Callable[[], str]) -> Callable[..., httpx2.Client]:
    """Starts a gateway of the fleet."""
    address = new_database()

    def joined(url: str = talking.server.url, **settings: Any) -> httpx2.Client:
        http = serve(url, jobs_database=address, **settings)
        until(lambda: http.get(JOBS).status_code == 200)
        return http

    return joined


def test_all_gateways_show_and_end_all_jobs(join: Callable[..., httpx2.Client], talking: Talking) -> None:
    first, second = join(job_parallel=1), join(job_parallel=1)
    job = ended(first, ASKED)
    assert second.get(f"{JOBS}/{job['id']}").json() == job and job["sentences"]["made"] == 2
    content = first.get(f"{JOBS}/{job['id']}/content")
    there = second.get(f"{JOBS}/{job['id']}/content")
    assert there.content == content.content and there.headers["etag"] == content.headers["etag"]
    part = second.get(f"{JOBS}/{job['id']}/content", headers={"Range": "bytes=10-19"})
    assert part.status_code == 206 and part.content == content.content[10:20]
    assert ended(second, ASKED)["sentences"]["made"] == 0, "they share what was spoken"
    same = {"Idempotency-Key": "one"}
    assert len({each.post(JOBS, json=ASKED, headers=same).json()["id"] for each in (first, second)}) == 1
    talking.pause = 0.2
    slow = first.post(JOBS, json={**ASKED, "input": TEXT}).json()
    until(lambda: (second.get(f"{JOBS}/{slow['id']}").json()["seconds_left"] or 0) > 0)
    cancelled = second.post(f"{JOBS}/{slow['id']}/cancel").json()
    assert cancelled["status"] == "cancelled" and cancelled["seconds_left"] is None
    time.sleep(1.5)  # a beat of the one that makes it, and what is under way
    spoken = len(talking.server.speeches)
    time.sleep(1.0)
    assert len(talking.server.speeches) == spoken and first.get(f"{JOBS}/{slow['id']}").json()["status"] == "cancelled"
    assert second.delete(f"{JOBS}/{job['id']}").status_code == 200
    assert first.get(f"{JOBS}/{job['id']}").status_code == 404


def test_a_gateway_that_leaves_is_followed(serve: Serve, talking: Talking, new_database: Callable[[], str]) -> None:
    """At once: it says that it leaves."""
    address = new_database()
    talking.pause = 0.2
    with serving() as serve_first:
        first = serve_first(talking.server.url, jobs_database=address, job_parallel=1)
        until(lambda: first.get(JOBS).status_code == 200)
        second = serve(talking.server.url, jobs_database=address, job_parallel=1)
        until(lambda: second.get(JOBS).status_code == 200)
        job = first.post(JOBS, json={**ASKED, "input": TEXT}).json()
        until(lambda: second.get(f"{JOBS}/{job['id']}").json()["sentences"]["done"] > 2)
    until(lambda: second.get(f"{JOBS}/{job['id']}").json()["status"] in ENDED)
    found = second.get(f"{JOBS}/{job['id']}").json()
    assert found["status"] == "completed" and found["sentences"]["made"] == found["sentences"]["total"]


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """One of the test's own, which may be stopped."""
    with running_postgres() as server:
        yield server


@pytest.mark.parametrize("failure", ["killed", "paused"])
def test_a_database_that_is_away(
    serve: Serve, talking: Talking, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    """What was acknowledged is there, and what was spoken meanwhile is kept afterwards, once."""
    monkeypatch.setattr(keeper, "AGAIN", 0.2)
    monkeypatch.setattr("voice_clone_gateway.jobs.postgres.SECONDS", 1.0)
    http = serve(talking.server.url, jobs_database=postgres.create_bare_database("jobs"), job_parallel=1)
    until(lambda: http.get(JOBS).status_code == 200)
    talking.pause = 0.1
    job = http.post(JOBS, json={**ASKED, "input": TEXT}).json()
    until(lambda: len(talking.server.speeches) > 3)
    if failure == "killed":
        postgres.kill()
    else:
        postgres.signal_all(signal.SIGSTOP)
    answer = http.get(f"{JOBS}/{job['id']}", timeout=20)
    assert answer.status_code == 503 and answer.headers["retry-after"]
    assert http.post("/v1/audio/speech", json=ASKED).status_code == 200, "speech does without"
    until(lambda: http.get("/health").json()["jobs"] == "unreadable")
    if failure == "killed":
        postgres.start()
    else:
        postgres.signal_all(signal.SIGCONT)

    def found() -> dict[str, Any]:
        answer: dict[str, Any] = http.get(f"{JOBS}/{job['id']}", timeout=20).json()
        return answer

    until(lambda: found().get("status") in ENDED, 60)
    assert found()["status"] == "completed" and found()["sentences"]["made"] == found()["sentences"]["total"]
    texts = [inputs["text"] for _, inputs in talking.server.speeches if b"captain" in inputs["text"]]
    assert len(texts) == len(set(texts)), "no sentence was spoken twice"


def test_a_gateway_without_the_key_leaves_a_job_to_others(
    serve: Serve, talking: Talking, tmp_path: Path, new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until none had the key for long."""
    monkeypatch.setattr(job_keys, "KEYLESS", 5.0)
    address, keys = new_database(), [tmp_path / "new", tmp_path / "old"]
    keys[0].write_text("alice speak name=A owner\nbob speak name=B owner\n")
    keys[1].write_text("alice speak name=A owner\n")
    alice, bob = ({"Authorization": f"Bearer {name}"} for name in ("alice", "bob"))

    def joined(serve: Serve, path: Path) -> httpx2.Client:
        http = serve(talking.server.url, jobs_database=address, api_keys_file=str(path), job_parallel=1)
        until(lambda: http.get(JOBS, headers=alice).status_code == 200)
        return http

    talking.pause = 0.2
    with serving() as serve_first:
        first = joined(serve_first, keys[0])
        texts = TEXT, TEXT.replace("captain", "owner")
        jobs = [first.post(JOBS, json={**ASKED, "input": text}, headers=bob).json()["id"] for text in texts]
        joined(serve, keys[1])
        until(lambda: first.get(f"{JOBS}/{jobs[0]}", headers=bob).json()["sentences"]["done"] > 1)
    time.sleep(2.5)  # the one that is left looks at jobs
    with serving() as serve_again:
        third = joined(serve_again, keys[0])
        until(lambda: third.get(f"{JOBS}/{jobs[0]}", headers=bob).json()["status"] in ENDED)
        assert third.get(f"{JOBS}/{jobs[0]}", headers=bob).json()["status"] == "completed"
    with closing(PostgresDatabase(address, tls=True)) as database:
        database.open()
        tables = JobTables(database, 10, "g")
        until(lambda: (job := tables.get(jobs[1])) is not None and job.status == "failed", 30)
        last = tables.get(jobs[1])
    assert last is not None and "key_removed" in (last.error or "")


def test_a_folder_beside_a_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="jobs_dir"):
        Jobs(Settings(jobs_dir=str(tmp_path), jobs_database="postgresql://user@localhost/x"))


def test_wrong_addresses() -> None:
    for wrong in ("mysql://x", "postgresql://user:secret@db.example/x", "postgresql://host:notaport:1/x"):
        with pytest.raises(ValueError, match="VOICE_CLONE_GATEWAY_JOBS_DATABASE") as refused:
            PostgresDatabase(wrong, tls=True)
        assert "secret" not in str(refused.value)
    PostgresDatabase("postgresql://user@db.example/x", tls=False)


def test_a_role_that_may_make_no_schema_uses_its_own(new_database: Callable[[], str]) -> None:
    address = new_database()
    with psycopg.connect(address, autocommit=True) as administrator:
        administrator.execute("DROP ROLE IF EXISTS jobs_alone")
        administrator.execute("CREATE ROLE jobs_alone LOGIN PASSWORD 'x'")
        administrator.execute("CREATE SCHEMA voice_clone_jobs AUTHORIZATION jobs_alone")
    own = re.sub("//([^@/]*@)?", "//jobs_alone:x@", address, count=1)
    with closing(PostgresDatabase(own, tls=True)) as database:
        database.open()
        assert database.run("SELECT count(*) FROM job").fetchone() == (0,)


def test_a_database_that_is_not_there_is_named_once(
    serve: Serve, talking: Talking, new_database: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    http = serve(talking.server.url, jobs_database=f"{new_database()}_not_made")
    until(lambda: http.get("/health").json()["jobs"] == "unreadable")
    time.sleep(2.5)  # several attempts
    [told] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert "_not_made" in told and "does not exist" in told


def test_voices_of_another_server_are_not_gone(
    join: Callable[..., httpx2.Client], talking: Talking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway erases what no server of the fleet has, not what its own has not."""
    monkeypatch.setattr(keeper, "SWEEP", 0.1)
    for name in ("GONE", "ALL_GONE"):
        monkeypatch.setattr(keeper, name, 5.0)
    first = join()
    job = ended(first, ASKED)
    with listening() as server:
        other = Talking(server)
        other.digest = "voice-9"
        second = join(server.url)
        until(lambda: sum(inputs.get("operation") == b"list" for _, inputs in [*server.calls]) > 60)  # 6 s
        assert second.get(f"{JOBS}/{job['id']}/content").status_code == 200
        talking.digest = None
        until(lambda: second.get(f"{JOBS}/{job['id']}/content").status_code == 410)


def test_text_that_the_database_does_not_keep(join: Callable[..., httpx2.Client]) -> None:
    """It is refused, and is not taken for a database that does not answer."""
    http = join()
    batch = {"endpoint": "/v1/audio/speech", "completion_window": "24h"}
    for answer in (
        http.get("/v1/batches", params={"after": "batch\0"}),
        http.post("/v1/batches", json={**batch, "input_file_id": "file\0"}),
    ):
        assert answer.status_code == 400 and "NUL" in answer.json()["error"]["message"], answer.text
    assert ended(http, ASKED)["status"] == "completed"
