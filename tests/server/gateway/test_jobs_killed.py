"""Gateways, servers and databases that are killed during a job: what they acknowledged is there, nothing is twice in
the result, and that has the bits of an undisturbed one."""

from __future__ import annotations

import logging
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from tests.support.official.postgres import PostgresServer, running_postgres
from tests.support.servers.jobs import (
    ENDED,
    JOBS,
    VOICE,
    asked,
    client_of,
    content,
    further,
    gateway_with_jobs,
    made,
    sentences,
)
from tests.support.servers.running import SETTINGS, running
from tests.support.waiting import until
from voice_clone_server.demo import CLIP, SHIPPED
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("demo")]

log = logging.getLogger(__name__)


def book(sentences: int) -> str:
    """A text of so many sentences, each of which takes a while."""
    end = "to a farmer who lost his horse in the morning, while seven birds sat on the roof and the teacher slept."
    return "\n\n".join(f"The old captain of ship number {number} sold his boat {end}" for number in range(sentences))


@pytest.mark.parametrize(
    ("count", "kills", "standby"),
    [
        (30, 3, False),
        (30, 3, True),
        pytest.param(400, 100, False, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
        pytest.param(400, 100, True, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
    ids=["alone", "with another one", "100 times", "100 times, with another one"],
)
def test_gateways_that_are_killed(demo: TritonServer, tmp_path: Path, count: int, kills: int, standby: bool) -> None:
    """With `standby` another gateway waits for the files of the one that is killed."""
    rng, once = random.Random(76), {"Idempotency-Key": "one"}
    body = asked(book(count), seed=3, response_format="flac")
    with gateway_with_jobs(demo, tmp_path / "undisturbed") as http:
        began = time.monotonic()
        wanted = content(http, made(http, body, 1200))
        alone = time.monotonic() - began
    id, done, taken = None, 0, list[float]()
    with ExitStack() as end:

        def start() -> Gateway:
            """A gateway that has the files, or waits for them."""
            gateway = Gateway(demo.url, tmp_path / "log", "--jobs-dir", str(tmp_path / "jobs"), "--job-parallel", "1")
            end.callback(kill, gateway)
            return gateway.__enter__()

        gateway = start()
        wait_for_jobs(gateway)
        for _ in range(kills):
            following = None
            if standby:  # which starts while the other one stands still, and keeps its files
                gateway.process.send_signal(signal.SIGSTOP)
                following = start()
                gateway.process.send_signal(signal.SIGCONT)
            with client_of(gateway) as http:
                found = http.post(JOBS, json=body, headers=once).json()
                assert found["id"] == (id or found["id"]), "what was acknowledged is there"
                id = found["id"]
                while not further(http, id, done):
                    time.sleep(0.01)
                time.sleep(rng.uniform(0.0, 0.5))
                now = http.get(f"{JOBS}/{id}").json()
                done = now["sentences"]["done"]
                assert now["status"] == "in_progress" and done < now["sentences"]["total"]
            kill(gateway)
            killed = time.monotonic()
            gateway = following or start()
            wait_for_jobs(gateway)
            taken.append(time.monotonic() - killed)
        with client_of(gateway) as http:
            until(lambda: http.get(f"{JOBS}/{id}").json()["status"] in ENDED, 1200)
            job = http.get(f"{JOBS}/{id}").json()
            assert sentences(job) == (count, count), "each sentence was kept once"
            assert content(http, job) == wanted
    assert "Traceback" not in (tmp_path / "log").read_text()
    log.info("%d kills, %d sentences, standby %s: alone %.1f s", kills, count, standby, alone)
    log.info("the next answers after %s s (p50, p95, most)", np.percentile(taken, [50, 95, 100]).round(2).tolist())


class Fleet:
    """A server, one gateway or two, and the database of two, all of which are killed."""

    def __init__(self, server: TritonServer, folder: Path, database: PostgresServer | None) -> None:
        self._server, self._log, self._database = server, folder / "log", database
        where = ("--jobs-dir", str(folder / "jobs"))
        if database is not None:
            where = ("--jobs-database", database.create_bare_database("jobs"))
        self._options = (*where, "--job-parallel", "2")
        self.gateways = [self._start() for _ in range(1 if database is None else 2)]
        self.kinds = ("gateway", "server", *(() if database is None else ("database",)))
        self.seconds: dict[str, list[float]] = {}
        """From each kill until the job had gone on, by what was killed; and until another gateway had the job."""

    def _start(self) -> Gateway:
        return Gateway(self._server.url, self._log, *self._options)

    def ask(self, path: str, number: int = 0) -> dict[str, Any] | None:
        """The answer of a gateway; None: it, or the database, is away."""
        try:
            with client_of(self.gateways[number]) as http:
                answer = http.get(f"{JOBS}/{path}")
        except httpx2.TransportError:
            return None
        assert answer.status_code in (200, 503), answer.text
        found: dict[str, Any] | None = answer.json() if answer.status_code == 200 else None
        return found

    def done(self, id: str) -> int:
        """How far a job is, by whichever gateway answers."""
        while True:
            for number in range(len(self.gateways)):
                if (job := self.ask(id, number)) is not None:
                    assert job["status"] in ("queued", "in_progress", "completed"), job
                    return 10**9 if job["status"] == "completed" else int(job["sentences"]["done"])
            time.sleep(0.05)

    def kill(self, kind: str, number: int, id: str) -> None:
        """Kill it, start it again, and wait until the job has gone on."""
        job = self.ask(id, number)
        makes = job is not None and job["seconds_left"] is not None
        before, began = self.done(id), time.monotonic()
        if kind == "gateway":
            kill(self.gateways[number])
            if makes and self._database is not None:
                other = 1 - number
                until(lambda: (self.ask(id, other) or {}).get("seconds_left") is not None or self.done(id) > 10**8, 60)
                self.seconds.setdefault("gateway, until another one has its job", []).append(time.monotonic() - began)
            self.gateways[number] = self._start()
        elif kind == "server":
            self._server.kill()
            self._server.start(60.0)
        else:
            assert self._database is not None
            self._database.kill()
            self._database.start()
        while self.done(id) <= before:
            time.sleep(0.05)
        self.seconds.setdefault(f"{kind}, until one more sentence is there", []).append(time.monotonic() - began)


@pytest.mark.parametrize(
    ("count", "kills", "together"),
    [
        (30, 6, False),
        (30, 9, True),
        pytest.param(400, 100, False, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
        pytest.param(400, 100, True, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
    ids=["alone", "fleet", "alone, 100 times", "fleet, 100 times"],
)
def test_all_that_is_killed(tmp_path: Path, count: int, kills: int, together: bool) -> None:
    """Gateways, server and database, at random: nothing that was acknowledged is lost, and the result is the same."""
    rng = random.Random(76)
    body = asked(book(count), seed=3, response_format="flac")
    with ExitStack() as end:
        (tmp_path / "server").mkdir()
        server = end.enter_context(running(SHIPPED, tmp_path / "server", **SETTINGS))
        with Client(server.url) as client:
            client.upload(VOICE, CLIP, wait=True)
        with gateway_with_jobs(server, tmp_path / "undisturbed") as http:
            began = time.monotonic()
            wanted = content(http, made(http, body, 1200))
            alone = time.monotonic() - began
        fleet = Fleet(server, tmp_path, end.enter_context(running_postgres(fsync="on")) if together else None)
        end.callback(lambda: [kill(each) for each in fleet.gateways])
        until(lambda: all(fleet.ask("", number) is not None for number in range(len(fleet.gateways))))
        with client_of(fleet.gateways[0]) as http:
            id = http.post(JOBS, json=body).json()["id"]
        killed, done = 0, 0
        while killed < kills:
            while (now := fleet.done(id)) <= done:
                time.sleep(0.05)
            time.sleep(rng.uniform(0.0, 0.5))
            if (done := max(now, fleet.done(id))) >= 10**8:
                break
            fleet.kill(rng.choice(fleet.kinds), rng.randrange(len(fleet.gateways)), id)
            killed += 1
        until(lambda: fleet.done(id) >= 10**8, 1200)
        for gateway in fleet.gateways:
            with client_of(gateway) as http:
                until(lambda http=http: http.get(JOBS).status_code == 200)
                job = http.get(f"{JOBS}/{id}").json()
                assert sentences(job) == (count, count), "each sentence was kept once"
                assert content(http, job) == wanted
    log.info("%d kills, %d sentences, fleet %s; undisturbed %.1f s", killed, count, together, alone)
    for kind, seconds in sorted(fleet.seconds.items()):
        shown = np.percentile(seconds, [50, 95, 100]).round(2).tolist()
        log.info("%s: %d times, seconds p50, p95, most: %s", kind, len(seconds), shown)
    assert killed >= min(kills, count // 8), "the job was over too soon"
    assert "Traceback" not in (tmp_path / "log").read_text()


def wait_for_jobs(gateway: Gateway) -> None:
    """Wait until it has the files."""
    with client_of(gateway) as http:
        while http.get(JOBS).status_code != 200:
            time.sleep(0.01)


def kill(gateway: Gateway) -> None:
    """As a crash would."""
    gateway.process.kill()
    gateway.process.wait()
