"""Gateways that are killed while they make a job: what they acknowledged is there, nothing is twice in the result, and
that has the bits of an undisturbed one."""

from __future__ import annotations

import logging
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from perf.bench.gateway_process import Gateway
from tests.support.servers.jobs import (
    ENDED,
    JOBS,
    asked,
    client_of,
    content,
    further,
    gateway_with_jobs,
    made,
    sentences,
)
from tests.support.waiting import until
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


def wait_for_jobs(gateway: Gateway) -> None:
    """Wait until it has the files."""
    with client_of(gateway) as http:
        while http.get(JOBS).status_code != 200:
            time.sleep(0.01)


def kill(gateway: Gateway) -> None:
    """As a crash would."""
    gateway.process.kill()
    gateway.process.wait()
