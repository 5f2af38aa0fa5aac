"""A model's process is held up while it loads, which Triton takes for its death: the tools start the server again."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support.servers.single_model import write_model
from voice_clone_server.triton_server import HELD_UP, MAX_STARTS, ServerFailed, TritonServer

pytestmark = pytest.mark.thorough

PAUSE = 2.2  # seconds: Triton looks every second whether the process has done something in that second
MODEL = """import time
from pathlib import Path

while not Path({held}).exists():
    time.sleep(0.05)


class TritonPythonModel:
    pass
"""
CONFIG = 'name: "slow" backend: "python" max_batch_size: 0 instance_group [ { count: 1 kind: KIND_CPU } ]'
WAIT = 60.0


def processes_of_models(server: TritonServer) -> Iterator[psutil.Process]:
    """Without those on the way to it: the server's own fork and a shell."""
    if server.process is not None:
        for child in psutil.Process(server.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == "triton_python_backend_stub":
                    yield child


def hold_up(server: TritonServer, held: Path) -> None:
    """Stop the process of the model for a while, soon after it came up; it loads until `held` exists."""
    deadline = time.monotonic() + WAIT
    while not (models := list(processes_of_models(server))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    [model] = models
    time.sleep(0.5)  # now it imports
    model.suspend()
    time.sleep(PAUSE)
    model.resume()
    held.touch()


@pytest.fixture(autouse=True)
def not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The restarts of these tests are none that the run must tell."""
    monkeypatch.setattr(TritonServer, "restarts", 0)


def test_a_server_that_aborts_while_it_loads_is_started_again(tmp_path: Path) -> None:
    held = tmp_path / "held"
    write_model(tmp_path / "models", MODEL.format(held=repr(str(held))), CONFIG)
    server = TritonServer(models=tmp_path / "models", log=tmp_path / "log")
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold_up, server, held)
        try:
            server.start()
            holding.result(WAIT)
        finally:
            held.touch()
            server.kill()
            server.stop()
    aborted = HELD_UP in (tmp_path / "log").read_text()
    assert aborted, "Triton bears a model that is held up: the tools need not start it again"
    assert TritonServer.restarts >= 1


@pytest.mark.parametrize(("said", "starts"), [(HELD_UP, MAX_STARTS), ("out of memory", 1)])
def test_a_server_that_always_aborts_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, starts: int
) -> None:
    """At once, if it is not for the known reason."""
    command = tmp_path / "tritonserver"
    command.write_text(
        '#!/bin/sh\n[ "$*" = --help ] && exit\n'  # the tools ask it which options it knows
        f'echo start >> "{tmp_path}/starts"\necho "terminate called: {said}"\nulimit -c 0\nkill -ABRT $$\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    server = TritonServer(log=tmp_path / "log")
    with pytest.raises(ServerFailed, match=f"status {-signal.SIGABRT}"):
        server.start()
    server.stop()
    assert (tmp_path / "starts").read_text().split() == ["start"] * starts
    assert TritonServer.restarts == starts - 1
