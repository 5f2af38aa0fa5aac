"""`tools/serve --idle-minutes` ends a server without work, and starts it again for the next caller, who waits."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx2
import psutil
import pytest
from voice_clone_client import Client

from perf.bench.idle import CALLERS, ORDER, VOICE, Served, burst, bursts, speech
from tests.support.servers.left_behind import processes_of, wait_until_gone
from tests.support.waiting import until
from voice_clone_server.demo import SHIPPED
from voice_clone_server.server_memory import FOLDER

pytestmark = pytest.mark.thorough

SECONDS = 2.0
WAKES = 50
SETTINGS = {"VOICE_CLONE_WARM_UP_SECONDS": "0.1"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(SHIPPED, tmp_path_factory.mktemp("idle"), SECONDS, **SETTINGS) as served:
        yield served
    wait_until_gone(str(served.process.pid))
    assert "Traceback" not in served.text


def spoken(served: Served) -> tuple[bytes, str]:
    """A speech, and where the server had its voice."""
    answer = served.http.post("/v1/audio/speech", json={**ORDER, "response_format": "wav"})
    assert answer.status_code == 200, answer.text
    return answer.content, json.loads(answer.headers["X-Speech-Info"])["cache"]


def test_an_idle_server_gives_its_memory_back_and_speaks_as_before(served: Served) -> None:
    before, _ = spoken(served)
    voices = served.http.get("/v1/audio/voices").json()
    assert served.state == "ready" and served.memory()["tritonserver and models"] > 0
    served.until_idle()
    assert served.memory()["tritonserver and models"] == 0
    assert len(served.http.get("/v1/models").json()["data"]) > 0 and served.state == "idle"
    starts = served.starts
    assert spoken(served) == (before, "restored") and served.starts == starts + 1
    assert spoken(served) == (before, "hit")
    assert served.http.get("/v1/audio/voices").json() == voices
    with Client(served.triton) as client:
        assert client.stats()["extractions"] == 0


def test_callers_at_once_make_one_start(served: Served) -> None:
    for moment in ("idle", "ending"):
        starts = served.starts
        answers = burst(served, moment)
        assert set(answers) == {f"{name} 200" for name in CALLERS}
        assert served.starts == starts + 1


def test_a_server_that_is_killed_while_it_starts_is_started_once_more(served: Served) -> None:
    served.until_idle()
    killed = served.text.count("ended by itself, with status -9")
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(speech, served.http) for _ in range(2)]
        for _ in range(2):
            served.until(lambda: served.server is not None)
            process = served.server
            assert process is not None
            process.kill()
            psutil.wait_procs([process])
        assert [answer.result()[0] for answer in answers] == [200, 200]
    assert served.text.count("ended by itself, with status -9") == killed + 2


def test_who_speaks_by_grpc_keeps_the_server(served: Served) -> None:
    speech(served.http)
    with Client(served.triton) as client:
        deadline = time.monotonic() + 3 * SECONDS
        while time.monotonic() < deadline:
            client.speak("Hello.", voice=VOICE, max_frames=2).read()
            assert served.state == "ready"
            time.sleep(SECONDS / 4)
        text = (word for word in iter(lambda: time.sleep(SECONDS / 4) or "small ", None))
        deadline = time.monotonic() + 3 * SECONDS
        for _ in client.speak_stream(text, voice=VOICE, max_frames=1000):
            assert served.state == "ready"
            if time.monotonic() > deadline:
                break


def test_who_only_looks_does_not_keep_the_server(served: Served) -> None:
    speech(served.http)
    with Client(served.triton) as client:
        while served.server is not None:
            for path in ("/health", "/metrics", "/v1/models", "/"):
                assert served.http.get(path).status_code == 200
            if served.state == "ready":
                assert client.models()
            time.sleep(SECONDS / 10)
    assert served.state == "idle"


def test_a_tool_that_is_ended_while_its_server_starts_leaves_nothing(tmp_path: Path) -> None:
    with Served(SHIPPED, tmp_path, SECONDS, **SETTINGS) as served, ThreadPoolExecutor(1) as pool:
        served.until_idle()
        answer = pool.submit(httpx2.get, f"{served.url}/v1/audio/voices", timeout=60.0)
        served.until(lambda: served.server is not None)
        assert served.server is not None
        words = served.server.cmdline()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
        with suppress(httpx2.TransportError):
            assert answer.result().status_code == 503
        tool = str(served.process.pid)
        until(lambda: not processes_of(tool))
        assert "Traceback" not in served.text
    [prefix] = [word.partition("prefix-name=")[2] for word in words if "prefix-name=" in word]
    assert not Path(words[0]).parent.exists() and not list(FOLDER.glob(f"{prefix}*"))


@pytest.mark.long
def test_no_request_fails_at_any_moment(tmp_path: Path) -> None:
    with Served(SHIPPED, tmp_path, SECONDS / 4, **SETTINGS) as served:
        answers = bursts(served, WAKES)
    assert set(answers) == {f"{name} 200" for name in CALLERS}
