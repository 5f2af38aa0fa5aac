"""A model's process is held up while it loads, which Triton takes for its death: the tools start the server again."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.server.single_model import write_model
from tools.triton_server import MAX_STARTS, ServerFailed, TritonServer

HELD_UP = 2.2  # seconds: Triton looks every second whether the process has done something in that second
MODEL = """import time

time.sleep(3)  # as long as it takes to import torch


class TritonPythonModel:
    pass
"""
CONFIG = 'name: "slow" backend: "python" max_batch_size: 0 instance_group [ { count: 1 kind: KIND_CPU } ]'
WAIT = 60.0


def hold_up(server: TritonServer) -> None:
    """Stop the process of the model for a while, soon after it came up."""
    deadline = time.monotonic() + WAIT
    children: list[psutil.Process] = []
    while not children and time.monotonic() < deadline:
        time.sleep(0.05)
        children = psutil.Process(server.process.pid).children() if server.process else []
    [model] = children
    time.sleep(0.5)  # now it imports
    model.suspend()
    time.sleep(HELD_UP)
    model.resume()


def test_a_server_that_aborts_while_it_loads_is_started_again(tmp_path: Path) -> None:
    write_model(tmp_path / "models", MODEL, CONFIG)
    server = TritonServer(models=tmp_path / "models", log=tmp_path / "log")
    holding = threading.Thread(target=hold_up, args=(server,))
    holding.start()
    try:
        server.start()
    finally:
        holding.join()
        server.kill()
        server.stop()
    aborted = "boost::interprocess::lock_exception" in (tmp_path / "log").read_text()
    assert aborted, "Triton bears a model that is held up: the tools need not start it again"


def test_a_server_that_always_aborts_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "tritonserver"
    command.write_text(f'#!/bin/sh\necho start >> "{tmp_path}/starts"\nkill -ABRT $$\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    server = TritonServer(log=tmp_path / "log")
    with pytest.raises(ServerFailed, match=f"status {-signal.SIGABRT}"):
        server.start()
    server.stop()
    assert (tmp_path / "starts").read_text().split() == ["start"] * MAX_STARTS
