"""Batches by OpenAI's own client, as it comes: lines that are jobs, results with their errors, owners and limits."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types import Batch
from voice_clone_gateway.jobs import batch_tables, keeper

from tests.support.doubles.gateway_thread import Serve, serving
from tests.support.doubles.jobs_double import ASKED, JOBS, Talking, ended
from tests.support.waiting import until

ENDPOINT: Any = "/v1/audio/speech"  # the client's types know no batches of speeches
URL = "/v1/audio/speech"
OVER = ("completed", "cancelled")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.thorough)])
def started(
    request: pytest.FixtureRequest, serve: Serve, talking: Talking, tmp_path: Path
) -> Callable[..., httpx2.Client]:
    """Starts a gateway that takes jobs, all of them on the same store."""
    store = {"jobs_dir": str(tmp_path / "jobs")}
    if request.param == "postgres":
        store = {"jobs_database": request.getfixturevalue("new_database")()}

    def start(serve: Serve = serve, **settings: Any) -> httpx2.Client:
        http = serve(talking.server.url, **store, **settings)
        until(lambda: http.get(JOBS, headers={"Authorization": "Bearer alice"}).status_code == 200)
        return http

    return start


Connect = Callable[..., openai.OpenAI]


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as stack:

        def connected(http: httpx2.Client, key: str = "alice") -> openai.OpenAI:
            return stack.enter_context(openai.OpenAI(base_url=f"{http.base_url}/v1", api_key=key, max_retries=0))

        yield connected


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": {**ASKED, **body}}


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(each) for each in text.splitlines()]


def sent(client: openai.OpenAI, *lines: dict[str, Any]) -> str:
    text = "\n".join(json.dumps(each) for each in lines)
    return client.files.create(file=("lines.jsonl", io.BytesIO(text.encode())), purpose="batch").id


def begun(client: openai.OpenAI, *lines: dict[str, Any], **more: Any) -> Batch:
    file = sent(client, *lines)
    return client.batches.create(input_file_id=file, endpoint=ENDPOINT, completion_window="24h", **more)


def over(client: openai.OpenAI, *lines: dict[str, Any]) -> Batch:
    id = begun(client, *lines).id
    until(lambda: client.batches.retrieve(id).status in OVER)
    return client.batches.retrieve(id)


def test_each_line_has_its_result(started: Callable[..., httpx2.Client], connect: Connect, talking: Talking) -> None:
    http = started(job_parallel=1)
    client = connect(http)
    lines = [
        line("first", input="One is here."),
        line("no such voice", voice=None),
        line("no such field", volume=3),
        line("no such model", model="none"),
        line("streams", stream=True),
        line("told", webhook_url="https://example.com/", webhook_secret="A" * 32),
        line("last", input="Two is there. One is here.", response_format="flac"),
    ]
    begins = begun(client, *lines, metadata={"book": "7"})
    assert begins.status in ("in_progress", "completed") and begins.endpoint == URL and begins.metadata == {"book": "7"}
    until(lambda: client.batches.retrieve(begins.id).status in OVER)
    batch = client.batches.retrieve(begins.id)
    counts = batch.request_counts
    assert batch.status == "completed" and counts is not None
    assert (counts.total, counts.completed, counts.failed) == (7, 2, 5)
    assert batch.output_file_id and batch.error_file_id and batch.completed_at and batch.in_progress_at
    output = client.files.content(batch.output_file_id).text
    results = lines_of(output)
    assert [each["custom_id"] for each in results] == ["first", "last"]
    assert client.files.retrieve(batch.output_file_id).bytes == len(output.encode())
    for each, format in zip(results, (b"RIFF", b"fLaC"), strict=True):
        response = each["response"]
        assert response["status_code"] == 200 and each["error"] is None
        audio = client.files.content(response["body"]["id"])
        assert audio.content[:4] == format and len(audio.content) == response["body"]["size"]
    failed = {each["custom_id"]: each["response"] for each in lines_of(client.files.content(batch.error_file_id).text)}
    assert {name: (each["status_code"], each["body"]["error"]["param"]) for name, each in failed.items()} == {
        "no such voice": (400, "voice"),
        "no such field": (400, "volume"),
        "no such model": (404, "model"),
        "streams": (400, "stream"),
        "told": (400, "webhook_url"),
    }
    assert len(talking.server.speeches) == 2, "each sentence is made once, also if two lines have it"
    assert http.get(JOBS).json()["data"] == [], "they are lines of the batch"
    assert ended(http, ASKED)["sentences"]["made"] == 0, "jobs find what batches made"


WRONG = (
    ("{", "line 2"),
    ('{"custom_id": "b"}', "line 2"),
    (json.dumps({**line("b"), "method": "GET"}), "POST"),
    (json.dumps({**line("b"), "url": "/v1/embeddings"}), URL),
    (json.dumps({**line("b"), "body": []}), "body"),
    (json.dumps({**line("b"), "id": "b"}), "id"),
    (json.dumps(line("a")), "custom_id"),
    (json.dumps(line("")), "custom_id"),
    (json.dumps(line("a\nb")), "custom_id"),
    ("\n".join(json.dumps(line(f"{number}")) for number in range(3)), "more than 3"),
)


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_lines_that_cannot_be_read(
    start: Callable[..., httpx2.Client],
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    talking: Talking,
    text: str,
    said: str,
) -> None:
    monkeypatch.setattr("voice_clone_gateway.jobs.batches.MOST_LINES", 3)
    client = connect(start())
    data = f"{json.dumps(line('a'))}\n{text}".encode()
    file = client.files.create(file=("x.jsonl", data), purpose="batch")
    with pytest.raises(openai.BadRequestError, match=said) as refused:
        client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
    assert refused.value.param == "input_file_id" and not talking.server.speeches
    assert client.batches.list().data == []


def test_files_and_batches_that_are_no_such(start: Callable[..., httpx2.Client], connect: Connect) -> None:
    client = connect(start())
    for data in (b"\xff", b"a\0b"):
        with pytest.raises(openai.BadRequestError):
            client.files.create(file=("x.jsonl", data), purpose="batch")
    with pytest.raises(openai.BadRequestError, match="batch"):
        client.files.create(file=("x.jsonl", b"{}"), purpose="user_data")
    file = sent(client)
    with pytest.raises(openai.BadRequestError, match="no line"):
        client.batches.create(input_file_id=file, endpoint=ENDPOINT, completion_window="24h")
    with pytest.raises(openai.BadRequestError, match=URL):
        client.batches.create(input_file_id=file, endpoint="/v1/embeddings", completion_window="24h")
    with pytest.raises(openai.NotFoundError):
        client.batches.create(input_file_id="file-0", endpoint=ENDPOINT, completion_window="24h")
    for call in (client.files.content, client.files.delete):
        for id in ("file-0", "batch_0-output", "job_0"):
            with pytest.raises(openai.NotFoundError):
                call(id)
    for of_batch in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            of_batch("batch_0")


def test_what_was_sent(started: Callable[..., httpx2.Client], connect: Connect) -> None:
    client = connect(started(job_bytes=1000))
    data = '{"custom_id": "é"}\r\n\n'.encode()
    files = [client.files.create(file=(f"{number}.jsonl", data), purpose="batch") for number in range(3)]
    assert [each.id for each in client.files.list(limit=2)] == [each.id for each in reversed(files)], "all pages"
    assert [each.filename for each in client.files.list(order="asc")] == ["0.jsonl", "1.jsonl", "2.jsonl"]
    assert client.files.list(purpose="vision").data == []
    found = client.files.retrieve(files[0].id)
    assert (found.bytes, found.purpose, client.files.content(found.id).content) == (len(data), "batch", data)
    assert client.files.delete(found.id).deleted
    assert [each.id for each in client.files.list(order="asc")] == [each.id for each in files[1:]]
    sent(client, line("large", input="word " * 200))
    with pytest.raises(openai.RateLimitError) as refused:
        sent(client)
    assert refused.value.code == "too_many_bytes", "what was sent counts as the files of jobs do"


def test_batches_in_pages(started: Callable[..., httpx2.Client], connect: Connect) -> None:
    client = connect(started())
    made = [over(client, line("a")).id for _ in range(3)]
    assert [each.id for each in client.batches.list(limit=2)] == made[::-1]


def test_a_batch_that_is_cancelled(started: Callable[..., httpx2.Client], connect: Connect, talking: Talking) -> None:
    client = connect(started(job_parallel=2))
    assert over(client, line("before", input="This was said before.")).status == "completed"
    talking.playing.clear()
    talking.pause = 0.3
    lines = [line("kept", input="This was said before.")]
    lines += [line(f"{number}", input=f"This is number {number}.") for number in range(40)]
    id = begun(client, *lines).id
    until(talking.playing.is_set)
    until(lambda: (counts := client.batches.retrieve(id).request_counts) is not None and counts.completed)
    batch = client.batches.cancel(id)
    assert batch.status == "cancelled" and batch.cancelling_at and batch.cancelled_at
    spoken = len(talking.server.speeches)
    assert batch.output_file_id and batch.error_file_id
    results = lines_of(client.files.content(batch.output_file_id).text)
    assert results[0]["custom_id"] == "kept", "what had been made stays"
    others = lines_of(client.files.content(batch.error_file_id).text)
    assert len(results) + len(others) == 41 and {each["error"]["code"] for each in others} == {"batch_cancelled"}
    talking.pause = 0.0
    assert over(client, line("later")).status == "completed", "the next batch is made"
    assert len(talking.server.speeches) <= spoken + 4
    assert client.batches.cancel(id).status == "cancelled", "once more"


def test_owners_have_their_own(started: Callable[..., httpx2.Client], connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice speak name=alice owner\nbob speak name=bob owner\n")
    http = started(api_keys_file=str(tmp_path / "keys"))
    alice, bob = connect(http), connect(http, "bob")
    batch = over(alice, line("a"))
    assert batch.output_file_id is not None
    audio = lines_of(alice.files.content(batch.output_file_id).text)[0]["response"]["body"]["id"]
    for id in (batch.input_file_id, batch.output_file_id, audio):
        assert alice.files.content(id).content
        for call in (bob.files.content, bob.files.delete):
            with pytest.raises(openai.NotFoundError):
                call(id)
    for of_batch in (bob.batches.retrieve, bob.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            of_batch(batch.id)
    with pytest.raises(openai.NotFoundError):
        bob.batches.create(input_file_id=batch.input_file_id, endpoint=ENDPOINT, completion_window="24h")
    assert bob.batches.list().data == [] and bob.files.list().data == []
    with pytest.raises(openai.AuthenticationError):
        connect(http, "eve").batches.list()


def test_limits(
    started: Callable[..., httpx2.Client], connect: Connect, talking: Talking, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = started(max_jobs=2)
    client = connect(http)
    talking.pause = 0.5
    begun(client, line("a"), line("b"), line("c"))
    assert http.post(JOBS, json=ASKED).status_code == 202, "a batch counts as one job"
    with pytest.raises(openai.RateLimitError) as refused:
        begun(client, line("d"))
    assert refused.value.code == "too_many_jobs"
    talking.pause = 0.0
    until(lambda: client.batches.list().data[0].status == "completed")
    until(lambda: http.get(JOBS).json()["data"][0]["status"] == "completed")
    monkeypatch.setattr(batch_tables, "MOST_LINES_KEPT", 4)
    assert over(client, line("e")).status == "completed"
    with pytest.raises(openai.RateLimitError, match="lines"):
        begun(client, line("f"))
    monkeypatch.setattr(batch_tables, "MOST_FILES", 1)
    with pytest.raises(openai.RateLimitError, match="files"):
        sent(client)


def test_lines_are_made_at_once_and_other_jobs_behind_them(
    started: Callable[..., httpx2.Client], connect: Connect, talking: Talking
) -> None:
    http = started(job_parallel=3)
    talking.pause = 0.3
    batch = begun(connect(http), *(line(f"{number}", input=f"This is number {number}.") for number in range(6)))
    until(lambda: len(talking.server.speeches) == 3)
    job = http.post(JOBS, json={**ASKED, "input": "This is last."}).json()
    until(lambda: http.get(f"{JOBS}/{job['id']}").json()["status"] == "completed")
    assert connect(http).batches.retrieve(batch.id).status == "completed"
    texts = [inputs["text"] for _, inputs in talking.server.speeches]
    assert texts[-1] == b"This is last." and len(texts) == len(set(texts)) == 7


def test_a_batch_survives_its_gateway(
    started: Callable[..., httpx2.Client], connect: Connect, talking: Talking
) -> None:
    talking.pause = 0.1
    with serving() as serve_first:
        first = connect(started(serve_first, job_parallel=2))
        id = begun(first, *(line(f"{number}", input=f"This is number {number}.") for number in range(12))).id
        until(lambda: (counts := first.batches.retrieve(id).request_counts) is not None and counts.completed > 2)
    talking.pause = 0.0
    client = connect(started())
    until(lambda: client.batches.retrieve(id).status == "completed")
    batch = client.batches.retrieve(id)
    assert batch.output_file_id is not None and batch.error_file_id is None
    results = lines_of(client.files.content(batch.output_file_id).text)
    assert [each["custom_id"] for each in results] == [f"{number}" for number in range(12)]
    assert sum(each["response"]["body"]["sentences"]["made"] for each in results) == 12


def test_a_batch_is_deleted_when_its_time_is_over(
    started: Callable[..., httpx2.Client], connect: Connect, monkeypatch: pytest.MonkeyPatch, talking: Talking
) -> None:
    """As a whole, not line by line."""
    monkeypatch.setattr(keeper, "SWEEP", 0.05)
    client = connect(started(job_days=1.0 / 86400, job_parallel=1))
    talking.pause = 0.5
    id = begun(client, *(line(f"{number}", input=f"This is number {number}.") for number in range(4))).id
    until(lambda: client.batches.retrieve(id).status == "completed")
    counts = client.batches.retrieve(id).request_counts
    assert counts is not None and counts.completed == 4, "also the lines that ended long ago"
    until(lambda: not client.batches.list().data and not client.files.list().data)
