"""What is kept of jobs: who reaches it, how it is read, and what is said when it is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from voice_clone_gateway.jobs import assembly, keeper, making
from voice_clone_gateway.jobs.database import DatabaseFailed
from voice_clone_gateway.jobs.plan import JobPlan
from voice_clone_gateway.jobs.sentences import SentenceStore
from voice_clone_gateway.jobs.work import Work
from voice_clone_program.server_lock import ServerLock

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.jobs_double import ASKED, ENDED, JOBS, Talking, ended
from tests.support.doubles.triton_double import FAMILY
from tests.support.waiting import WAIT, until

Start = Callable[..., httpx2.Client]
KEY = "a-key-that-is-long-enough-for-tokens"


def test_a_token_reaches_no_job(start: Start, tmp_path: Path) -> None:
    """It is for a browser, which speaks for a while."""
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY} speak name=A owner\nalice speak name=B\n")
    http = start(api_keys_file=str(keys))
    job = ended(http, ASKED, Authorization=f"Bearer {KEY}")
    granted = http.post("/v1/auth/grant", headers={"Authorization": f"Token {KEY}"})
    token = granted.json()["access_token"]
    with_token = {"Authorization": f"Bearer {token}"}
    for method, path in (
        ("GET", ""),
        ("POST", ""),
        ("GET", f"/{job['id']}"),
        ("GET", f"/{job['id']}/content"),
        ("POST", f"/{job['id']}/cancel"),
        ("DELETE", f"/{job['id']}"),
    ):
        answer = http.request(method, JOBS + path, json=ASKED if method == "POST" else None, headers=with_token)
        assert answer.status_code == 403 and "key" in answer.json()["error"]["message"]
    for path in ("/v1/files", f"/v1/files/{job['id']}/content", "/v1/batches"):
        assert http.get(path, headers=with_token).status_code == 403
    speech = {**ASKED, "response_format": "wav"}
    assert http.post("/v1/audio/speech", json=speech, headers=with_token).status_code == 200
    assert http.get(f"{JOBS}/{job['id']}", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


@pytest.mark.parametrize("damage", ["gone", "short"])
def test_a_file_that_is_lost(start: Start, tmp_path: Path, talking: Talking, damage: str) -> None:
    """The answer says what to do, and that makes no sentence again."""
    http = start()
    job = ended(http, ASKED)
    content = http.get(f"{JOBS}/{job['id']}/content").content
    path = tmp_path / "jobs" / "results" / job["id"]
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:100])
    for method in ("GET", "HEAD"):
        answer = http.request(method, f"{JOBS}/{job['id']}/content")
        assert answer.status_code == 410
    error = http.get(f"{JOBS}/{job['id']}/content").json()["error"]
    assert error["code"] == "file_lost" and "make the job again" in error["message"]
    spoken = len(talking.server.speeches)
    again = ended(http, ASKED)
    assert http.get(f"{JOBS}/{again['id']}/content").content == content and len(talking.server.speeches) == spoken


def test_a_look_at_a_job_wakes_no_server(
    serve: Serve, talking: Talking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SWEEP", 0.05)
    program = ServerLock(tmp_path / "lock", make=True)
    http = serve(talking.server.url, jobs_dir=str(tmp_path / "jobs"), server_lock=str(tmp_path / "lock"))
    until(lambda: http.get(JOBS).status_code == 200)
    job = ended(http, ASKED)
    until(program.take)
    time.sleep(0.2)  # a question that was under way
    asked = len(talking.server.calls)
    for method, path in (("GET", ""), ("GET", f"/{job['id']}"), ("GET", f"/{job['id']}/content")):
        assert http.request(method, JOBS + path).status_code == 200
    assert http.post(f"{JOBS}/{job['id']}/cancel").json()["status"] == "completed"
    time.sleep(0.3)  # several sweeps
    assert http.delete(f"{JOBS}/{job['id']}").status_code == 200
    assert not program.asked and len(talking.server.calls) == asked, "nor is it asked for its voices"


def test_a_list_has_no_segments(start: Start) -> None:
    http = start()
    job = ended(http, ASKED)
    assert len(job["segments"]) == 1
    assert http.get(JOBS).json()["data"] == [{**job, "segments": None}]


def test_health_says_that_jobs_cannot_be_read(serve: Serve, talking: Talking, tmp_path: Path) -> None:
    assert "jobs" not in serve(talking.server.url).get("/health").json()
    folder = tmp_path / "jobs"
    first = serve(talking.server.url, jobs_dir=str(folder))
    until(lambda: first.get("/health").json() == {"status": "ready", "jobs": "ready"})
    second = serve(talking.server.url, jobs_dir=str(folder))
    assert second.get("/health").json() == {"status": "ready", "jobs": "waiting"}
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "jobs.sqlite3").write_bytes(b"x" * 5000)
    third = serve(talking.server.url, jobs_dir=str(damaged))
    until(lambda: third.get("/health").json()["jobs"] == "unreadable")
    assert third.get("/health").json()["status"] == "ready", "speech does without"


def test_a_long_text_is_acknowledged_before_it_is_planned(
    start: Start, talking: Talking, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = list[Any]()
    planned = Work.planned

    async def counted(work: Work, *arguments: Any) -> Any:
        plans.append(found := await planned(work, *arguments))
        return found

    monkeypatch.setattr(Work, "planned", counted)
    http = start()
    text = " ".join(f"The captain of ship number {number} sold his boat to a farmer." for number in range(400))
    answer = http.post(JOBS, json={**ASKED, "input": text})
    assert answer.status_code == 202 and answer.json()["model"] == FAMILY and answer.json()["voice"] == "Ada"
    url = f"{JOBS}/{answer.json()['id']}"
    until(lambda: http.get(url).json()["status"] in ENDED)
    job = http.get(url).json()
    assert job["status"] == "completed" and job["sentences"]["total"] == plans[0].plan.count > 100 and len(plans) == 1
    wrong = ended(http, {**ASKED, "input": "... " * 6000})
    assert wrong["status"] == "failed" and wrong["error"]["code"] == "invalid_argument"
    assert http.post(JOBS, json={**ASKED, "input": text, "model": "no_such"}).status_code == 404
    talking.digest = None
    assert http.post(JOBS, json={**ASKED, "input": text}).json()["error"]["code"] == "voice_not_found"


def test_tasks_that_swallow_a_cancellation_end_all_the_same() -> None:
    """As calls of libraries do when it comes beside a result."""

    async def stubborn(lost: int) -> None:
        for _ in range(lost):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        await asyncio.sleep(60)

    async def run() -> float:
        tasks = [asyncio.create_task(stubborn(lost)) for lost in (0, 2)]
        await asyncio.sleep(0)
        began = time.monotonic()
        await making.end_of(tasks)
        assert all(task.cancelled() for task in tasks)
        return time.monotonic() - began

    assert asyncio.run(run()) < 30


def test_a_long_file_holds_up_no_other_owner(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going_on = threading.Event()
    written = assembly.assemble

    def slow(plan: JobPlan, *arguments: Any) -> Any:
        if plan.count > 2:
            assert going_on.wait(WAIT)
        return written(plan, *arguments)

    monkeypatch.setattr("voice_clone_gateway.jobs.work.assemble", slow)
    (tmp_path / "keys").write_text("alice speak name=A owner\nbob speak name=B owner\n")
    http, alice = start(api_keys_file=str(tmp_path / "keys")), {"Authorization": "Bearer alice"}
    book = http.post(JOBS, json={**ASKED, "input": "One is here. Two is there. Three is gone."}, headers=alice).json()
    until(lambda: http.get(f"{JOBS}/{book['id']}", headers=alice).json()["sentences"]["done"] == 3)
    assert ended(http, ASKED, Authorization="Bearer bob")["status"] == "completed"
    assert http.get(f"{JOBS}/{book['id']}", headers=alice).json()["status"] == "in_progress"
    going_on.set()
    until(lambda: http.get(f"{JOBS}/{book['id']}", headers=alice).json()["status"] == "completed")


def test_a_job_that_is_cancelled_while_its_file_is_written_leaves_none(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = threading.Event()

    def slow(*arguments: Any) -> Any:
        [path] = [each for each in arguments if isinstance(each, Path)]
        writing.set()
        time.sleep(0.5)  # the job is cancelled meanwhile
        path.write_bytes(b"speech")
        raise assembly.Stopped

    monkeypatch.setattr("voice_clone_gateway.jobs.work.assemble", slow)
    http = start()
    job = http.post(JOBS, json=ASKED).json()
    assert writing.wait(WAIT)
    assert http.post(f"{JOBS}/{job['id']}/cancel").json()["status"] == "cancelled"
    assert [*(tmp_path / "jobs" / "results").iterdir()] == []


def test_a_voice_that_is_gone_is_erased_though_nothing_can_be_dropped(
    start: Start, talking: Talking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(store: SentenceStore) -> bool:
        raise DatabaseFailed("it takes too long")

    for name in ("SWEEP", "GONE", "ALL_GONE"):
        monkeypatch.setattr(keeper, name, 0.05)
    monkeypatch.setattr(SentenceStore, "evict", failing)
    http = start()
    job = ended(http, ASKED)
    talking.digest = None
    until(lambda: http.get(f"{JOBS}/{job['id']}/content").status_code == 410)
    until(lambda: not [*(tmp_path / "jobs" / "sentences").glob("??/*")])


def test_files_that_cannot_be_read(
    serve: Serve, talking: Talking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said, and they are tried again: also by another gateway."""
    monkeypatch.setattr(keeper, "UNREAD", 0.1)
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "jobs.sqlite3").write_bytes(b"x" * 5000)
    gateways = [serve(talking.server.url, jobs_dir=str(folder)) for _ in range(2)]
    for http in gateways:
        until(lambda http=http: "cannot be read" in http.get(JOBS).text, 20)
        assert http.get(JOBS).status_code == 503
    (folder / "jobs.sqlite3").unlink()
    until(lambda: any(http.get(JOBS).status_code == 200 for http in gateways), 20)
