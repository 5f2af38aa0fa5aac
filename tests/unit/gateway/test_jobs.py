"""The endpoints of jobs: what they refuse, whose jobs they show, and what a job does with a server that fails."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from voice_clone_gateway.jobs import keeper, making
from voice_clone_gateway.jobs.database import DatabaseFailed
from voice_clone_gateway.jobs.files import JobFiles
from voice_clone_gateway.jobs.plan import plan_of
from voice_clone_gateway.jobs.schemas import JobRequest
from voice_clone_gateway.jobs.sqlite import SQLiteDatabase
from voice_clone_gateway.jobs.tables import Job, JobTables
from voice_clone_gateway.jobs.work import Work

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.jobs_double import ASKED, DIGEST, ENDED, JOBS, Talking, ended
from tests.support.doubles.triton_double import FAMILY, Failure
from tests.support.waiting import until


def test_a_new_job(start: Callable[..., httpx2.Client]) -> None:
    http = start()
    answer = http.post(JOBS, json=ASKED)
    job = answer.json()
    assert answer.status_code == 202 and answer.headers["location"] == f"{JOBS}/{job['id']}"
    assert int(answer.headers["retry-after"]) > 0
    assert job["object"] == "audio.job" and job["model"] == FAMILY and job["voice"] == "Ada"
    assert job["sentences"] == {"total": 2, "done": 0, "made": 0} and job["status"] in ("queued", "in_progress")
    until(lambda: http.get(f"{JOBS}/{job['id']}").json()["status"] == "completed")


WRONG: tuple[tuple[dict[str, Any], int, str | None], ...] = (
    ({"input": " "}, 400, "input"),
    ({"input": "..."}, 400, "input"),
    ({"input": "<speak><p>"}, 400, "input"),
    ({"input": "x " * 600}, 400, "input"),
    ({"stream": True}, 400, "stream"),
    ({"stream_format": "sse"}, 400, "stream_format"),
    ({"timestamp_granularities": ["word"]}, 400, "timestamp_granularities"),
    ({"voice": None, "reference_audio": "data:audio/wav;base64,AAAA"}, 400, "reference_audio"),
    ({"voice": None, "speaker_embedding": [0.1]}, 400, "speaker_embedding"),
    ({"voice": None}, 400, "voice"),
    ({"model": "no_such"}, 404, "model"),
    ({"speed": 9}, 400, "speed"),
    ({"voices": "Ada"}, 400, "voices"),
    ({"response_format": "ogg"}, 400, "response_format"),
    ({"response_format": "opus", "sample_rate": 44100}, 400, "sample_rate"),
    ({"webhook_url": "https://example.com/x"}, 400, "webhook_secret"),
    ({"webhook_secret": "whsec_" + "A" * 32}, 400, "webhook_secret"),
    ({"webhook_url": "https://example.com/x", "webhook_secret": "short"}, 400, "webhook_secret"),
    *(
        ({"webhook_url": "https://example.com/x", "webhook_secret": secret}, 400, "webhook_secret")
        for secret in ("A" * 33, "whsec_" + "A" * 34, "A" * 92, "-" * 32, "é" * 32)  # none is base64 of 24 to 64 bytes
    ),
    *(
        ({"webhook_url": url, "webhook_secret": "whsec_" + "A" * 32}, 400, "webhook_url")
        for url in (
            "http://example.com/",
            "https://127.0.0.1/",
            "https://[::1]/",
            "https://a:b@example.com/",
            "ftp://x",
        )
    ),
)


@pytest.mark.parametrize(("more", "status", "param"), WRONG)
def test_wrong_jobs(start: Callable[..., httpx2.Client], more: dict[str, Any], status: int, param: str | None) -> None:
    http = start(job_characters=1000)
    answer = http.post(JOBS, json={**ASKED, **more})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
    assert http.get(JOBS).json() == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_an_unknown_voice_or_job(start: Callable[..., httpx2.Client], talking: Talking) -> None:
    http = start()
    talking.digest = None
    assert http.post(JOBS, json=ASKED).json()["error"]["code"] == "voice_not_found"
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content"), ("POST", "/cancel")):
        answer = http.request(method, f"{JOBS}/job_0{path}")
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "job_not_found"
    assert http.get(JOBS, params={"after": "job_0"}).status_code == 404
    assert http.get(JOBS, params={"limit": 0}).status_code == 400


def test_text_that_no_database_keeps(start: Callable[..., httpx2.Client]) -> None:
    http = start()
    part = {"segments": [{"text": "One is here.", "voice": "Ada"}], "response_format": "wav"}
    for body, param in (
        ({**ASKED, "webhook_secret": "\0"}, "webhook_secret"),
        ({**ASKED, "webhook_url": "https://example.com/\0"}, "webhook_url"),
        ({**part, "voice": "Ada\0"}, "voice"),
    ):
        answer = http.post(JOBS, json=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
    assert http.get(JOBS, params={"after": "job\0"}).status_code == 400
    assert http.get(JOBS).json()["data"] == []


def voice(**styles: str) -> dict[str, Any]:
    """What the server knows of a voice with styles, each with a digest."""
    more = {style: {"digest": digest, "generation": 1} for style, digest in styles.items()}
    return {"name": "Ada", "digest": DIGEST, "generation": 1, "owner": None, "styles": more}


def test_a_list_of_styles_means_the_one_that_there_is(start: Callable[..., httpx2.Client], talking: Talking) -> None:
    """A style that comes while the job is made does not change it, nor end it."""
    found, answer, asked = [voice()], talking.answer, list[Any]()

    def answered(inputs: dict[str, Any]) -> dict[str, bytes]:
        return {"result": json.dumps(found[0]).encode()} if inputs["operation"] == b"get" else answer(inputs)

    talking.server.answer, talking.pause = answered, 0.2
    http = start(job_parallel=1)
    job = http.post(JOBS, json={**ASKED, "style": "happy, neutral"}).json()
    found[0] = voice(happy="voice-2")
    until(lambda: http.get(f"{JOBS}/{job['id']}").json()["status"] in ENDED)
    assert http.get(f"{JOBS}/{job['id']}").json()["status"] == "completed"
    asked = [inputs["style"] for _, inputs in talking.server.speeches]
    assert asked == [b"neutral"] * 2
    for wrong in ("sad", "happy,../x", "neutral,", ",happy", "happy,_a"):
        assert http.post(JOBS, json={**ASKED, "style": wrong}).status_code == 400, wrong


@pytest.mark.parametrize(("style", "status"), [("happy", 400), ("happy,neutral", 202), (None, 202)])
def test_a_voice_of_the_model_has_no_styles(
    start: Callable[..., httpx2.Client], talking: Talking, style: str | None, status: int
) -> None:
    def answered(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] == b"get":
            raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice is registered under this name")
        presets = [{"name": "ryan", "model_type": FAMILY, "registered": False}]
        return {"result": json.dumps({"speakers": [], "count": 0, "aliases": {}, "presets": presets}).encode()}

    talking.server.answer = answered
    http = start()
    answer = http.post(JOBS, json={**ASKED, "voice": "Ryan", "style": style})
    assert answer.status_code == status, answer.text


def test_a_gateway_without_a_folder_takes_none(serve: Serve, talking: Talking) -> None:
    answer = serve(talking.server.url).post(JOBS, json=ASKED)
    assert answer.status_code == 501 and "--jobs-dir" in answer.json()["error"]["message"]


def test_an_idempotency_key(start: Callable[..., httpx2.Client], talking: Talking) -> None:
    http = start()
    first = ended(http, ASKED, **{"Idempotency-Key": "a"})
    again = http.post(JOBS, json={**ASKED, "speed": None}, headers={"Idempotency-Key": "a"})
    assert again.status_code == 202 and again.json()["id"] == first["id"], "as it is now"
    assert again.json()["status"] == "completed"
    other = http.post(JOBS, json={**ASKED, "input": "Three."}, headers={"Idempotency-Key": "a"})
    assert other.status_code == 422 and other.json()["error"]["code"] == "idempotency_key_reused"
    assert ended(http, ASKED, **{"Idempotency-Key": "b"})["id"] != first["id"]
    assert len(talking.server.speeches) == 2, "each sentence once"


def test_keys_have_their_own_jobs_and_speech(
    start: Callable[..., httpx2.Client], tmp_path: Path, talking: Talking
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice speak name=alice owner\nbob speak name=bob owner\nnew speak name=alice owner\n")
    http = start(api_keys_file=str(keys), max_jobs=2)
    alice, bob, new = ({"Authorization": f"Bearer {name}"} for name in ("alice", "bob", "new"))
    job = ended(http, ASKED, **alice)
    assert job["status"] == "completed" and job["sentences"]["made"] == 2
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content"), ("POST", "/cancel")):
        assert http.request(method, f"{JOBS}/{job['id']}{path}", headers=bob).status_code == 404
        assert http.request(method, f"{JOBS}/{job['id']}{path}").status_code == 401
    assert http.get(JOBS, headers=bob).json()["data"] == []
    assert [each["id"] for each in http.get(JOBS, headers=new).json()["data"]] == [job["id"]], "a key of the same owner"
    assert ended(http, ASKED, **bob)["sentences"]["made"] == 2, "nothing is shared between owners"
    assert ended(http, ASKED, **new)["sentences"]["made"] == 0
    assert set(talking.server.owners[-1:]) <= {"alice", "bob", ""}
    assert {each.owner for each in talking.server.spoken} == {"alice", "bob"}
    assert {urgency for _, urgency in talking.server.callers if urgency} == {"batch"}
    talking.pause = 0.2
    slow = {**ASKED, "input": "Some other words. " * 50}
    assert [http.post(JOBS, json=slow, headers=alice).status_code for _ in range(3)] == [202, 202, 429]
    assert http.post(JOBS, json=slow, headers=bob).status_code == 202


@pytest.mark.parametrize("rule", ["required", "off"])
def test_a_job_has_the_mark_of_the_key_that_made_it(
    start: Callable[..., httpx2.Client], tmp_path: Path, talking: Talking, rule: str
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"alice speak name=A owner\nbob speak name=A owner mark={rule}\n")
    http = start(api_keys_file=str(keys), audit_log=str(tmp_path / "audit"))
    ended(http, ASKED, Authorization="Bearer bob")
    assert {each.mark for each in talking.server.spoken} == {rule}
    assert json.loads((tmp_path / "audit").read_text())["mark_rule"] == rule


@pytest.mark.parametrize(("rule", "spoken"), [("off", set()), ("on", set()), ("required", {"required"})])
def test_a_job_whose_key_is_gone_gets_no_weaker_mark(
    start: Callable[..., httpx2.Client], tmp_path: Path, talking: Talking, rule: str, spoken: set[str]
) -> None:
    database = SQLiteDatabase(tmp_path / "jobs")
    with closing(database):
        database.open()
        job = Job("job_1", "owner A", FAMILY, "Ada", "wav", "[]", None, None, "r", 2, 20, 0.0, "required")
        plan = plan_of(JobRequest.model_validate(ASKED), (), 300)
        JobTables(database, 10, "g").create(job, json.dumps(ASKED), (plan.dumps(), {DIGEST}), None, "")
    keys = tmp_path / "keys"
    keys.write_text(f"alice speak name=A owner mark={rule}\n")
    http = start(api_keys_file=str(keys))
    url, alice = f"{JOBS}/job_1", {"Authorization": "Bearer alice"}
    until(lambda: http.get(url, headers=alice).json()["status"] in ENDED)
    assert {each.mark for each in talking.server.spoken} == spoken


def test_a_key_keeps_only_so_many_bytes(start: Callable[..., httpx2.Client]) -> None:
    http = start(job_bytes=100)
    first = ended(http, ASKED)
    assert first["status"] == "completed" and first["size"] > 100
    refused = http.post(JOBS, json=ASKED)
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "too_many_bytes"
    http.delete(f"{JOBS}/{first['id']}")
    assert ended(http, ASKED)["status"] == "completed"


def test_what_is_transient_is_tried_again(start: Callable[..., httpx2.Client], talking: Talking) -> None:
    http = start(job_parallel=1)
    talking.failures = [
        Failure(grpc.StatusCode.UNAVAILABLE, "overloaded: the queue is full"),
        Failure(grpc.StatusCode.INTERNAL, "internal: something failed"),
        Failure(grpc.StatusCode.UNAVAILABLE, "the connection is lost"),
    ]
    job = ended(http, ASKED)
    assert job["status"] == "completed" and job["sentences"]["made"] == 2 and not talking.failures


def test_what_the_server_refuses_ends_the_job(start: Callable[..., httpx2.Client], talking: Talking) -> None:
    http = start(job_parallel=1)
    talking.failures = [Failure(grpc.StatusCode.INVALID_ARGUMENT, "invalid_argument: `language` must be another one")]
    job = ended(http, ASKED)
    assert job["status"] == "failed" and job["error"] == {
        "code": "invalid_argument",
        "message": "language must be another one",
    }
    assert http.get(f"{JOBS}/{job['id']}/content").status_code == 409


@pytest.mark.parametrize(("reasons", "spoken"), [(["runaway", "stop"], 3), (["runaway"], None)])
def test_missed_ends(
    start: Callable[..., httpx2.Client], talking: Talking, reasons: list[str], spoken: int | None
) -> None:
    """Another attempt has another seed, which the next job finds, too."""
    http = start(job_parallel=1)
    talking.finish = list(reasons)
    job = ended(http, ASKED)
    if spoken is None:
        assert job["status"] == "failed" and job["error"]["code"] == "incomplete"
        spoken_before = len(talking.server.speeches)
        again = ended(http, ASKED)
        assert again["status"] == "failed" and again["error"]["code"] == "incomplete", "also where all of it is kept"
        assert len(talking.server.speeches) == spoken_before
        assert ended(http, {**ASKED, "allow_partial": True})["status"] == "completed"
        return
    assert job["status"] == "completed" and job["sentences"] == {"total": 2, "done": 2, "made": spoken}
    seeds = [int(inputs["seed"][0]) for _, inputs in talking.server.speeches]
    assert len(set(seeds)) == spoken
    assert ended(http, ASKED)["sentences"]["made"] == 0


def test_a_voice_that_is_replaced_ends_its_jobs(start: Callable[..., httpx2.Client], talking: Talking) -> None:
    http = start(job_parallel=1)
    talking.pause = 0.3
    job = http.post(JOBS, json=ASKED).json()
    talking.digest = "voice-2"
    until(lambda: http.get(f"{JOBS}/{job['id']}").json()["status"] in ENDED)
    assert http.get(f"{JOBS}/{job['id']}").json()["error"]["code"] == "voice_deleted"
    assert ended(http, ASKED)["status"] == "completed", "a new job has the new voice"


def test_a_voice_whose_speech_cannot_be_erased_yet_is_deleted(
    start: Callable[..., httpx2.Client], talking: Talking, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str | None]()

    async def full(jobs: keeper.Jobs, digest: str | None) -> None:
        asked.append(digest)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    http = start()
    monkeypatch.setattr(keeper.Jobs, "forget_voice", full)
    assert http.delete("/v1/audio/voices/Ada").status_code == 200 and asked == [DIGEST]


def test_a_voice_that_cannot_be_read_can_be_deleted(start: Callable[..., httpx2.Client], talking: Talking) -> None:
    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] == b"get":
            raise Failure(grpc.StatusCode.INTERNAL, "internal: its file is damaged")
        return talking.answer(inputs)

    talking.server.answer = answer
    assert start().delete("/v1/audio/voices/Ada").status_code == 200


def test_another_synthesizer_makes_all_of_it(start: Callable[..., httpx2.Client], talking: Talking) -> None:
    http = start(job_parallel=1)
    assert ended(http, ASKED)["sentences"]["made"] == 2
    talking.synthesizer, talking.server.synthesizers = "s2", {FAMILY: "s2"}
    assert ended(http, ASKED)["sentences"]["made"] == 2
    talking.synthesizer = "s3"  # a server of a fleet that is unlike the one that was asked
    job = ended(http, {**ASKED, "input": "Nobody said this before."})
    assert job["status"] == "failed" and "servers" in job["error"]["message"]


def test_a_voice_that_another_program_deletes(
    start: Callable[..., httpx2.Client], talking: Talking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made in it is found and erased."""
    for name in ("SWEEP", "GONE", "ALL_GONE"):
        monkeypatch.setattr(keeper, name, 0.05)
    http = start()
    job = ended(http, ASKED)
    kept = tmp_path / "jobs" / "sentences"
    time.sleep(0.3)
    assert http.get(f"{JOBS}/{job['id']}/content").status_code == 200 and len([*kept.glob("??/*")]) == 2
    talking.digest = None
    until(lambda: http.get(f"{JOBS}/{job['id']}/content").status_code == 410)
    until(lambda: not [*kept.glob("??/*")])
    assert not (tmp_path / "jobs" / "results" / job["id"]).exists()


def test_a_job_is_deleted_when_its_time_is_over(
    start: Callable[..., httpx2.Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SWEEP", 0.05)
    http = start(job_days=1e-6)
    job = http.post(JOBS, json=ASKED).json()
    until(lambda: http.get(f"{JOBS}/{job['id']}").status_code == 404)
    assert not [*(tmp_path / "jobs" / "results").iterdir()]


def test_two_gateways_never_have_the_files_at_once(serve: Serve, talking: Talking, tmp_path: Path) -> None:
    talking.pause = 0.2
    first = serve(talking.server.url, jobs_dir=str(tmp_path / "jobs"))
    until(lambda: first.get(JOBS).status_code == 200)
    job = first.post(JOBS, json=ASKED).json()
    second = serve(talking.server.url, jobs_dir=str(tmp_path / "jobs"))
    for _ in range(3):
        answer = second.get(f"{JOBS}/{job['id']}")
        assert answer.status_code == 503 and answer.headers["retry-after"]


def test_an_error_of_the_disk_does_not_end_the_jobs_of_an_owner(
    start: Callable[..., httpx2.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, claim = [DatabaseFailed("disk I/O error")], JobTables.claim

    def failing(tables: JobTables, *arguments: Any) -> Job | None:
        if errors:
            raise errors.pop()
        return claim(tables, *arguments)

    monkeypatch.setattr(JobTables, "claim", failing)
    monkeypatch.setattr(keeper, "AGAIN", 0.1)
    http = start()
    assert ended(http, ASKED)["status"] == "completed" and not errors


def test_a_list_without_a_voice_erases_nothing_at_once(
    start: Callable[..., httpx2.Client], talking: Talking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that starts may not have read its voices yet."""
    monkeypatch.setattr(keeper, "SWEEP", 0.05)
    http = start()
    job, listed = ended(http, ASKED), list[int]()
    answers = [[], [{"name": "Bob", "digest": "voice-9", "generation": 2, "owner": None}]]

    def without(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] != b"list":
            return talking.answer(inputs)
        listed.append(1)
        return {"result": json.dumps({"speakers": answers[len(listed) % 2], "count": 1, "presets": []}).encode()}

    talking.server.answer = without
    until(lambda: len(listed) > 5)
    assert http.get(f"{JOBS}/{job['id']}/content").status_code == 200


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_cancel_beside_the_end_of_a_job(
    start: Callable[..., httpx2.Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The job ends once, also in the audit log, and a cancelled one has no file."""
    reached, let_go, end = threading.Event(), threading.Event(), JobTables.end

    def slow(tables: JobTables, job: Job, result: Any, *more: Any) -> Job | None:
        found = end(tables, job, result, *more)
        if result.status == "completed":
            reached.set()
            let_go.wait(20)
        return found

    work = Work.make

    async def made(*arguments: Any) -> Any:
        found = await work(*arguments)
        if moment == "after":  # the cancel is written first
            reached.set()
            await asyncio.to_thread(let_go.wait, 20)
        return found

    http = start(audit_log=str(tmp_path / "audit"))
    if moment == "before":
        monkeypatch.setattr(JobTables, "end", slow)
    else:
        monkeypatch.setattr(Work, "make", made)
    job = http.post(JOBS, json=ASKED).json()
    assert reached.wait(20)
    threading.Timer(0.3, let_go.set).start()
    status = http.post(f"{JOBS}/{job['id']}/cancel").json()["status"]
    let_go.set()
    assert status == {"before": "completed", "after": "cancelled"}[moment]
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [line["outcome"] for line in lines] == [{"before": "ok", "after": "cancelled"}[moment]]
    assert (tmp_path / "jobs" / "results" / job["id"]).exists() == (status == "completed")


def test_a_server_that_does_not_say_what_makes_its_sound(
    start: Callable[..., httpx2.Client], talking: Talking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "DIGESTED", 0.3)
    http = start()
    talking.server.synthesizers = {}
    answer = http.post(JOBS, json=ASKED, timeout=10)
    assert answer.status_code == 503 and answer.headers["retry-after"] and FAMILY in answer.json()["error"]["message"]
    talking.server.synthesizers = {FAMILY: "s1"}
    assert ended(http, ASKED)["status"] == "completed"


def test_a_long_text_lets_others_between(
    start: Callable[..., httpx2.Client], talking: Talking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call in the thread of the files is about all sentences of a text."""
    longest, aside = [0], JobFiles.aside

    async def watched(files: JobFiles, call: Any, *arguments: Any) -> Any:
        longest.append(max((len(each) for each in arguments if isinstance(each, list)), default=0))
        return await aside(files, call, *arguments)

    monkeypatch.setattr(JobFiles, "aside", watched)
    talking.pause = 1.0
    http = start()
    job = http.post(JOBS, json={**ASKED, "input": "This is no short sentence. " * 1500}).json()
    assert job["sentences"]["total"] == 0 and job["characters"] > 40_000, "it is acknowledged, and planned then"
    until(lambda: talking.server.speeches)
    job = http.get(f"{JOBS}/{job['id']}").json()
    http.delete(f"{JOBS}/{job['id']}")
    assert job["sentences"]["total"] > 1000 and 0 < max(longest) <= 1000


def test_a_sentence_that_a_key_may_never_speak(start: Callable[..., httpx2.Client], tmp_path: Path) -> None:
    """It is refused when the job is made, not in the middle of it."""
    (tmp_path / "keys").write_text("alice speak characters_per_minute=40\n")
    http, alice = start(api_keys_file=str(tmp_path / "keys")), {"Authorization": "Bearer alice"}
    refused = http.post(JOBS, json={**ASKED, "input": "Short. " + "word " * 9 + "end."}, headers=alice)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "input"
    assert "40 a minute" in refused.json()["error"]["message"]
    assert http.post(JOBS, json=ASKED, headers=alice).status_code == 202
