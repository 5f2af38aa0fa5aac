"""Jobs on the real server, in the demo's voice: what is made, what is made again, and what ends a job."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from tests.support.servers.running import SETTINGS, running
from tests.support.waiting import until
from voice_clone_server.demo import CLIP, SHIPPED
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.share("demo")

JOBS = "/v1/audio/jobs"
VOICE = "Narrator"
PARAGRAPHS = (
    "The old captain sold his boat. My sister wants a new car.",
    "Seven birds sat on the roof. The teacher opened the window. Please close the door.",
    "The farmer lost his horse in the morning.",
)
TEXT = "\n\n".join(PARAGRAPHS)
ENDED = ("completed", "failed", "cancelled")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with running(SHIPPED, tmp_path_factory.mktemp("demo"), **SETTINGS) as server:
        with Client(server.url) as client:
            client.upload(VOICE, CLIP, wait=True)
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def http(demo: TritonServer, folder: Path) -> Iterator[httpx2.Client]:
    with (
        Gateway(demo.url, folder / "log", "--jobs-dir", str(folder / "jobs")) as gateway,
        httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False, verify=False) as http,
    ):
        yield http
    assert "Traceback" not in (folder / "log").read_text()


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"input": text, "voice": VOICE, "response_format": "wav", **more}


def made(http: httpx2.Client, body: dict[str, Any]) -> dict[str, Any]:
    """A job that has ended."""
    answer = http.post(JOBS, json=body)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    until(lambda: http.get(f"{JOBS}/{job['id']}").json()["status"] in ENDED)
    found: dict[str, Any] = http.get(f"{JOBS}/{job['id']}").json()
    return found


def content(http: httpx2.Client, job: dict[str, Any]) -> bytes:
    answer = http.get(f"{JOBS}/{job['id']}/content")
    assert answer.status_code == 200, answer.text
    return bytes(answer.content)


def test_a_job_is_made(http: httpx2.Client) -> None:
    job = made(http, asked(TEXT))
    assert job["status"] == "completed", job
    print(job)
