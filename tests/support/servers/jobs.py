"""Jobs of a gateway in front of a server that has the demo's voice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from perf.bench.gateway_process import Gateway
from tests.support.waiting import WAIT, until
from voice_clone_server.triton_server import TritonServer

JOBS = "/v1/audio/jobs"
VOICE = "Narrator"
PARAGRAPHS = (
    "The old captain sold his boat. My sister wants a new car.",
    "Seven birds sat on the roof. The teacher opened the window. Please close the door.",
    "The farmer lost his horse in the morning.",
)
TEXT = "\n\n".join(PARAGRAPHS)
ENDED = ("completed", "failed", "cancelled")
LONG = "\n\n".join(f"The captain of ship {number} sold his boat. A bird sat on mast {number}." for number in range(20))
"""Of 40 sentences."""


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"input": text, "voice": VOICE, "response_format": "wav", **more}


def made(http: httpx2.Client, body: dict[str, Any], seconds: float = WAIT) -> dict[str, Any]:
    """A job that has ended, within so many seconds."""
    answer = http.post(JOBS, json=body)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    until(lambda: http.get(f"{JOBS}/{job['id']}").json()["status"] in ENDED, seconds)
    found: dict[str, Any] = http.get(f"{JOBS}/{job['id']}").json()
    return found


def content(http: httpx2.Client, job: dict[str, Any]) -> bytes:
    answer = http.get(f"{JOBS}/{job['id']}/content")
    assert answer.status_code == 200, answer.text
    return bytes(answer.content)


def sentences(job: dict[str, Any]) -> tuple[int, int]:
    """How many a job has, and how many the server spoke for it."""
    assert job["status"] == "completed", job
    assert job["sentences"]["done"] == job["sentences"]["total"] and job["progress"] == 100
    return job["sentences"]["total"], job["sentences"]["made"]


def further(http: httpx2.Client, id: str, done: int) -> bool:
    """Whether a job is further than it was, or has ended."""
    job = http.get(f"{JOBS}/{id}").json()
    assert job["status"] in ("queued", "in_progress", "completed"), job
    return bool(job["sentences"]["done"] > done or job["status"] == "completed")


@contextmanager
def gateway_with_jobs(demo: TritonServer, folder: Path) -> Iterator[httpx2.Client]:
    folder.mkdir()
    with Gateway(demo.url, folder / "log", "--jobs-dir", str(folder / "jobs")) as gateway, client_of(gateway) as http:
        yield http


@contextmanager
def client_of(gateway: Gateway) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False, verify=False) as http:
        yield http
