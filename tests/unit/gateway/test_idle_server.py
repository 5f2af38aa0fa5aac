"""A speech server that was ended because it was idle: what starts it, who waits for it, and what keeps it from ending.

The test plays the program that ends and starts the server: it has the lock, and the double of Triton is the server.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
import websockets.sync.client
from voice_clone_gateway.http.idle_server import IdleServer
from voice_clone_program.server_lock import ServerLock

from tests.support.doubles.gateway_thread import Serve, serving
from tests.support.doubles.jobs_double import ASKED, JOBS, Talking
from tests.support.doubles.triton_double import Failure, Server, endless
from tests.support.waiting import WAIT, until

SPEECH = {"voice": "ada", "input": "Hello.", "response_format": "pcm"}
WAITERS = 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def program(file: Path) -> ServerLock:
    return ServerLock(file, make=True)


def test_probes_and_pages_leave_an_idle_server_alone(
    triton: Server, serve: Serve, file: Path, program: ServerLock
) -> None:
    http = serve(triton.url, server_lock=str(file))
    assert http.get("/health").json() == {"status": "ready"}
    models = http.get("/v1/models").json()
    assert program.take()
    calls = len(triton.calls)
    assert http.get("/health").json() == {"status": "idle"}
    assert http.get("/v1/models").json() == models
    for path in ("/metrics", "/", "/page/app.js", "/openapi.json"):
        assert http.get(path).status_code == 200
    assert len(triton.calls) == calls and not program.asked


def test_a_gateway_that_does_not_know_the_models_does_not_ask_an_idle_server(
    triton: Server, serve: Serve, file: Path, program: ServerLock
) -> None:
    assert program.take()
    http = serve(triton.url, server_lock=str(file))
    assert http.get("/v1/models").status_code == 503
    assert not triton.calls and not program.asked
    program.free()
    assert [model["id"] for model in http.get("/v1/models").json()["data"]][:1] == triton.model_types


REQUESTS: dict[str, Callable[[httpx2.Client], httpx2.Response]] = {
    "speech": lambda http: http.post("/v1/audio/speech", json=SPEECH),
    "upload": lambda http: http.post(
        "/v1/audio/voices", data={"name": "ada", "consent": "yes"}, files={"audio_sample": b"x"}
    ),
    "list": lambda http: http.get("/v1/audio/voices"),
    "ElevenLabs": lambda http: http.post("/v1/text-to-speech/ada", json={"text": "Hello."}),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_requests_with_work_have_the_server_started_once_and_wait(
    triton: Server, serve: Serve, file: Path, program: ServerLock, kind: str
) -> None:
    triton.answer = lambda inputs: {"result": b'{"name": "ada", "speakers": []}'}
    http = serve(triton.url, server_lock=str(file), allow_partial=True)
    assert program.take()
    with ThreadPoolExecutor(WAITERS) as pool:
        answers = [pool.submit(REQUESTS[kind], http) for _ in range(WAITERS)]
        until(lambda: program.asked)
        time.sleep(0.2)
        assert not triton.calls and not any(answer.done() for answer in answers)
        assert http.get("/health").json() == {"status": "idle"}
        program.free()
        assert [answer.result(WAIT).status_code for answer in answers] == [200] * WAITERS
    until(program.take)  # the work is over


def test_who_may_not_use_the_gateway_does_not_start_the_server(
    triton: Server, serve: Serve, file: Path, program: ServerLock, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("secret-key-1 speak\n")
    http = serve(triton.url, server_lock=str(file), api_keys_file=str(tmp_path / "keys"))
    assert program.take()
    assert REQUESTS["speech"](http).status_code == 401
    http.headers["Authorization"] = "Bearer secret-key-1"
    assert REQUESTS["upload"](http).status_code == 403
    assert not program.asked


def test_the_wait_is_bounded_and_the_start_goes_on(
    triton: Server, serve: Serve, file: Path, program: ServerLock
) -> None:
    http = serve(triton.url, server_lock=str(file), wake_seconds=0.3, retry_after=7)
    assert program.take()
    answer = REQUESTS["speech"](http)
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "7"
    assert answer.json()["error"]["code"] == "server_unavailable" and program.asked
    time.sleep(0.9)
    asked = program.last_work
    program.free()
    until(lambda: program.last_work > asked)  # the gateway has seen that it is ready, and has no work
    assert program.take()
    answer = REQUESTS["speech"](http)
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "2", "the first start took 1.2 s"
    program.free()
    assert REQUESTS["speech"](http).status_code == 200


def test_a_full_disk_that_has_room_again_ends_no_start(
    triton: Server, serve: Serve, file: Path, program: ServerLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def full(lock: ServerLock) -> None:
        failed.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    http = serve(triton.url, server_lock=str(file))
    assert program.take()
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        patch.setattr(ServerLock, "ask", full)
        answer = pool.submit(REQUESTS["speech"], http)
        assert failed.wait(WAIT) and not program.asked
        patch.undo()
        until(lambda: program.asked)
        program.free()
        assert answer.result(WAIT).status_code == 200


def test_to_ask_needs_no_room_on_the_disk(file: Path, program: ServerLock) -> None:
    gateway, size = ServerLock(file), file.stat().st_size
    for _ in range(2):
        assert program.take() and not program.asked
        gateway.ask()
        assert program.asked and file.stat().st_size == size
        program.free()


def test_a_gateway_makes_no_lock_of_its_own(file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        IdleServer(str(file))
    assert not file.exists()


def test_a_caller_that_leaves_does_not_end_the_start_for_the_others(
    triton: Server, serve: Serve, file: Path, program: ServerLock
) -> None:
    http = serve(triton.url, server_lock=str(file))
    assert program.take()
    with socket.create_connection((http.base_url.host, http.base_url.port or 0)) as leaving:
        leaving.sendall(b"GET /v1/audio/voices HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: program.asked)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(REQUESTS["speech"], http)
        time.sleep(0.1)
        program.free()
        assert other.result(WAIT).status_code == 200
    until(program.take)


def test_a_server_does_not_end_while_there_is_work(
    triton: Server, serve: Serve, file: Path, program: ServerLock
) -> None:
    http = serve(triton.url, server_lock=str(file))
    triton.play = endless()
    begun = program.last_work
    with http.stream("POST", "/v1/audio/speech", json=SPEECH) as answer:
        chunks = answer.iter_raw()
        for _ in range(5):
            assert next(chunks) and not program.take()
    until(program.take)
    assert program.last_work > begun


def test_a_websocket_waits_and_keeps_the_server(triton: Server, serve: Serve, file: Path, program: ServerLock) -> None:
    url = str(serve(triton.url, server_lock=str(file)).base_url).replace("http", "ws")
    assert program.take()
    threading.Timer(0.3, program.free).start()
    with websockets.sync.client.connect(f"{url}/v1/audio/speech/stream", proxy=None):
        assert not program.take()
    until(program.take)


def test_a_websocket_is_refused_if_the_server_does_not_start(
    triton: Server, serve: Serve, file: Path, program: ServerLock
) -> None:
    url = str(serve(triton.url, server_lock=str(file), wake_seconds=0.2).base_url).replace("http", "ws")
    assert program.take()
    with pytest.raises(websockets.InvalidStatus) as refused:
        websockets.sync.client.connect(f"{url}/v1/audio/speech/stream", proxy=None)
    assert refused.value.response.status_code == 503 and program.asked


HOLD = """
import sys
from voice_clone_program.server_lock import ServerLock
lock = ServerLock(sys.argv[1])
assert lock.share() if sys.argv[2] == "share" else lock.take()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(file: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts a process that has the lock."""
    started: list[subprocess.Popen[bytes]] = []

    def start(how: str) -> subprocess.Popen[bytes]:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", HOLD, str(file), how], **pipes)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        return process

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_a_killed_process_frees_its_lock(holder: Callable[[str], subprocess.Popen[bytes]], program: ServerLock) -> None:
    gateway = holder("share")
    assert not program.take() and program.share()
    program.free()
    gateway.kill()
    gateway.wait()
    assert program.take()
    program.free()
    other = holder("take")
    assert not program.share()
    program.ask()
    other.kill()
    other.wait()
    assert program.share()


def test_what_was_asked_before_the_lock_was_taken_is_over(file: Path, program: ServerLock) -> None:
    gateway = ServerLock(file)
    gateway.ask()
    assert program.take() and not program.asked
    gateway.ask()
    assert program.asked and os.stat(file).st_mode & 0o777 == 0o600


def test_a_job_has_an_idle_server_started_and_keeps_it(serve: Serve, talking: Talking, tmp_path: Path) -> None:
    program = ServerLock(tmp_path / "lock", make=True)
    settings = {"jobs_dir": str(tmp_path / "jobs"), "server_lock": str(tmp_path / "lock")}
    talking.failures = [Failure(grpc.StatusCode.UNAVAILABLE, "the connection is lost")] * 1000
    with serving() as serve_first:
        http = serve_first(talking.server.url, **settings)
        until(lambda: http.get(JOBS).status_code == 200)
        job = http.post(JOBS, json=ASKED).json()
    talking.failures.clear()
    assert program.take()
    http = serve(talking.server.url, **settings, wake_seconds=0.1)
    until(lambda: program.asked)
    time.sleep(0.5)  # longer than the job waits at a time
    talking.playing.clear()
    talking.pause = 0.3
    program.free()
    assert talking.playing.wait(WAIT) and not program.take()
    until(lambda: http.get(f"{JOBS}/{job['id']}").json()["status"] == "completed")
    until(program.take)
