"""Webhooks of jobs: signed by Standard Webhooks, told again until they are taken, and never to a private host."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from openai import InvalidWebhookSignatureError, OpenAI
from standardwebhooks import Webhook
from voice_clone_gateway import Settings
from voice_clone_gateway.jobs import tables as job_tables
from voice_clone_gateway.jobs import webhooks
from voice_clone_gateway.jobs.deliveries import PLACES, PLACES_OF_OWNER
from voice_clone_gateway.jobs.sqlite import SQLiteDatabase
from voice_clone_gateway.jobs.tables import Job, JobTables, Result, TooMany
from voice_clone_gateway.jobs.webhooks import Webhooks, event_of

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.jobs_double import ASKED, JOBS, Talking
from tests.support.doubles.triton_double import listening
from tests.support.waiting import until

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Receiver(ThreadingHTTPServer):
    """Answers with each status, the last one for ever."""

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = [*statuses]
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/hook"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        status = self.server.statuses.pop(0) if len(self.server.statuses) > 1 else self.server.statuses[0]
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def receive() -> Iterator[Any]:
    started: list[Receiver] = []

    def start(*statuses: int) -> Receiver:
        started.append(receiver := Receiver(*statuses))
        threading.Thread(target=receiver.serve_forever, args=(0.01,), daemon=True).start()
        return receiver

    yield start
    for receiver in started:
        receiver.shutdown()
        receiver.server_close()


def allowing(receiver: Receiver) -> dict[str, Any]:
    networks = (ip_network("127.0.0.0/8"),)
    return {"webhook_urls": "http", "webhook_ports": (receiver.server_port,), "webhook_networks": networks}


def test_the_end_of_a_job_is_told(serve: Serve, tmp_path: Path, receive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "FIRST_WAIT", 0.01)
    receiver = receive(500, 302, 204)
    with listening() as triton:
        Talking(triton)
        http = serve(triton.url, jobs_dir=str(tmp_path / "jobs"), **allowing(receiver))
        until(lambda: http.get(JOBS).status_code == 200)
        job = http.post(JOBS, json={**ASKED, "webhook_url": receiver.url, "webhook_secret": SECRET}).json()
        until(lambda: len(receiver.got) == 3)
        deleted = http.post(JOBS, json={**ASKED, "webhook_url": receiver.url, "webhook_secret": SECRET}).json()
        until(lambda: len(receiver.got) == 4)
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert ids[0] == ids[1] == ids[2] != ids[3], "an event keeps its id"
    for headers, body in receiver.got:
        event = Webhook(SECRET).verify(body, headers)
        assert event["type"] == "audio.job.completed" and event["id"] == headers["webhook-id"]
    assert [json.loads(body)["data"] for _, body in receiver.got] == [{"id": job["id"]}] * 3 + [{"id": deleted["id"]}]
    with closing(OpenAI(api_key="unused", webhook_secret=SECRET)) as client:
        headers, body = receiver.got[0]
        assert client.webhooks.unwrap(body, headers).type == "audio.job.completed"
        with pytest.raises(InvalidWebhookSignatureError):
            client.webhooks.unwrap(body.replace(b"completed", b"cancelled"), headers)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[JobTables]:
    database = SQLiteDatabase(tmp_path)
    database.open()
    yield JobTables(database, 10, "g")
    database.close()


def ended(tables: JobTables, url: str, id: str = "job_1", secret: str = SECRET, owner: str = "") -> Job:
    job = Job(id, owner, "f", None, "wav", "[]", url, secret, "r", 1, 1, 0.0)
    tables.create(job, "{}", ("{}", ()), None, "")
    tables.end(job, Result("failed", {"message": "m", "code": "c"}), event_of(id, "failed"), 1e6)
    return job


@pytest.mark.parametrize(
    ("status", "over"), [(200, True), (204, True), (410, True), (302, False), (404, False), (500, False)]
)
def test_answers(tables: JobTables, receive: Any, status: int, over: bool) -> None:
    receiver = receive(status)
    ended(tables, receiver.url)
    [delivery] = tables.deliveries.due({})
    assert asyncio.run(Webhooks(Settings(**allowing(receiver))).deliver(delivery)) is over
    assert len(receiver.got) == 1, "a redirect is not followed"


def test_a_host_is_checked_at_each_delivery(tables: JobTables, receive: Any) -> None:
    """A name that was public when the job was made may lead elsewhere later."""
    receiver = receive(200)
    found = ["203.0.114.1"]

    async def resolve(host: str, port: int) -> list[str]:
        return found

    settings = {**allowing(receiver), "webhook_networks": ()}
    sender = Webhooks(Settings(**settings), resolve)
    url = f"http://moves.example:{receiver.server_port}/"
    asyncio.run(sender.check(url))
    ended(tables, url)
    [delivery] = tables.deliveries.due({})
    found[:] = ["127.0.0.1"]
    assert not asyncio.run(sender.deliver(delivery)) and not receiver.got
    sender = Webhooks(Settings(**allowing(receiver)), resolve)
    assert asyncio.run(sender.deliver(delivery)) and len(receiver.got) == 1


def test_an_event_waits_until_it_is_taken(tables: JobTables) -> None:
    job = ended(tables, "http://example.com/")
    [delivery] = tables.deliveries.due({})
    tables.deliveries.postpone(delivery.id, 100.0)
    assert tables.deliveries.due({}) == []
    tables.deliveries.postpone(delivery.id, -1.0)
    [again] = tables.deliveries.due({})
    assert again.attempts == 2 and again.body == delivery.body
    assert tables.end(job, Result("completed"), event_of("job_1", "completed"), 1.0) is None, "a job ends once"
    tables.deliveries.delivered(delivery.id)
    assert tables.deliveries.due({}) == []


def test_owners_take_turns(tables: JobTables) -> None:
    """Many events of one to a slow receiver do not hold up those of others."""
    for number in range(40):
        ended(tables, "http://example.com/", f"job_{number}", owner="many")
    first = tables.deliveries.due({})
    assert len(first) == PLACES_OF_OWNER
    ended(tables, "http://example.com/", "job_other", owner="few")
    assert [each.job for each in tables.deliveries.due({"many": PLACES_OF_OWNER})] == ["job_other"]
    for owner in "abcde":
        for number in range(9):
            ended(tables, "http://example.com/", f"job_{owner}_{number}", owner=owner)
    taken = tables.deliveries.due({"many": PLACES_OF_OWNER})
    assert len(taken) == PLACES - PLACES_OF_OWNER
    assert {sum(each.owner == owner for each in taken) for owner in "abcde"} <= {2, 3}
    assert not {each.id for each in taken} & {each.id for each in first}, "an event is one gateway's for a while"


def test_the_events_of_a_key_are_bounded(tables: JobTables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_tables, "MOST_EVENTS", 3)
    for number in range(3):
        ended(tables, "http://example.com/", f"job_{number}")
    with pytest.raises(TooMany, match="webhooks"):
        ended(tables, "http://example.com/", "job_more")
    ended(tables, "http://example.com/", "job_of_another_key", owner="other")
    monkeypatch.setattr(job_tables, "MOST_ENDED", 3)
    job = Job("job_silent", "", "f", None, "wav", "[]", None, None, "r", 1, 1, 0.0)
    with pytest.raises(TooMany, match="DELETE"):
        tables.create(job, "{}", ("{}", ()), None, "")


def test_what_cannot_be_sent_does_not_hold_up_the_others(tables: JobTables, receive: Any) -> None:
    """Each is tried once, and then waits for its next attempt, whatever was wrong with it."""
    receiver = receive(200)
    for number in range(100):  # as many as are looked for at once
        ended(tables, receiver.url, f"job_{number}", secret="A" * 33)
    ended(tables, receiver.url, "job_good")

    async def aside(call: Any, *arguments: Any) -> Any:
        return call(*arguments)

    async def serve() -> None:
        task = asyncio.create_task(Webhooks(Settings(**allowing(receiver))).serve(tables.deliveries, aside))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(told(), 20)
        task.cancel()

    async def told() -> None:
        while not receiver.got:
            await asyncio.sleep(0.05)

    asyncio.run(serve())
    assert [json.loads(body)["data"]["id"] for _, body in receiver.got] == ["job_good"]
    assert tables.deliveries.due({}) == []


def test_text_and_secret_are_in_no_file_when_they_are_not_needed(tables: JobTables, tmp_path: Path) -> None:
    """Neither in the tables nor in the log of their changes."""
    job = Job("job_1", "", "f", None, "wav", "[]", "https://example.com/", SECRET, "r", 1, 1, 0.0)

    def found(text: str) -> bool:
        return any(text.encode() in path.read_bytes() for path in tmp_path.glob("jobs.sqlite3*"))

    tables.create(job, '{"input": "Zanzibar"}', ("{}", ()), None, "")
    assert found("Zanzibar") and found(SECRET)
    tables.end(job, Result("failed"), event_of("job_1", "failed"), 1e6)
    assert not found("Zanzibar") and found(SECRET)
    [delivery] = tables.deliveries.due({})
    assert delivery.secret == SECRET
    tables.deliveries.delivered(delivery.id)
    assert not found(SECRET) and tables.get("job_1") is not None
