"""However a tool ends, no process of its server is left, and it says so in one line."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.families.factories import CheckpointFactory
from tests.support.servers.left_behind import processes_of, wait_until_gone
from voice_clone_server.server_memory import FOLDER
from voice_clone_server.triton_server import ROOT, free_ports

pytestmark = pytest.mark.thorough

LOADING = 300.0  # seconds until the first model's process is there
ENDING = 120.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


def serve(checkpoint: Path, folder: Path) -> list[str]:
    grpc, http, metrics, gateway = map(str, free_ports(4))
    ports = ["--grpc-port", grpc, "--http-port", http, "--metrics-port", metrics, "--gateway", gateway]
    return ["voice_clone_server.serve", "--checkpoint", str(checkpoint), "--voices", str(folder / "voices"), *ports]


TOOLS = {
    "serve": serve,
    "inspect": lambda checkpoint, folder: ["voice_clone_server.inspect_speech", "--checkpoint", str(checkpoint)],
    "load": lambda checkpoint, folder: ["perf.bench.load", "--checkpoint", str(checkpoint)],
}
CASES = [("serve", number) for number in SIGNALS] + [
    (tool, number) for tool in ("inspect", "load") for number in (signal.SIGTERM, signal.SIGKILL)
]
USUAL = (("serve", signal.SIGINT), ("serve", signal.SIGKILL), ("inspect", signal.SIGTERM))  # one of each kind of end


@pytest.mark.parametrize(
    ("tool", "number"), [pytest.param(*case, marks=[] if case in USUAL else pytest.mark.long) for case in CASES]
)
def test_no_process_is_left(
    checkpoint_folder: CheckpointFactory, tmp_path: Path, tool: str, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "tools.run", *TOOLS[tool](checkpoint_folder("tiny", 0), tmp_path)]
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(scratch)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    pid = str(process.pid)
    wait_for_models(process, tmp_path / "log")
    names = set(re.findall(r"shm-region-prefix-name=(\w+?)_ ", "".join(processes_of(pid))))
    assert names
    process.send_signal(number)
    status = process.wait(ENDING)
    wait_until_gone(pid)
    deadline = time.monotonic() + ENDING
    while left := [*(path for name in names for path in FOLDER.glob(f"{name}*")), *scratch.glob("voice-clone-[!p]*")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    if number == signal.SIGKILL:
        assert status == -signal.SIGKILL
    elif tool == "serve":
        assert status == 0 and said.rstrip().count("Stopping") == 1
    else:
        assert status == 128 + number and said.endswith("Stopped.\n") and said.count("\n") <= 2


def test_a_terminal_that_closes_ends_the_demo(tmp_path: Path) -> None:
    """With the signal that the kernel sends then, and no terminal to write to any more."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", CLOSED, "tools.demo", "-o", str(tmp_path / "demo.wav")],
        cwd=ROOT,
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
    )
    os.close(end)
    wait_for_models(process, None)
    os.close(terminal)
    process.wait(ENDING)
    wait_until_gone(str(process.pid))


# The tool in the foreground of the terminal that it has as its input.
CLOSED = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from tools.run import run
del sys.argv[0]
sys.exit(run(sys.argv[0]))
"""


def wait_for_models(process: subprocess.Popen[bytes], log: Path | None) -> None:
    deadline = time.monotonic() + LOADING
    while sum("triton_python_backend_stub" in command for command in processes_of(str(process.pid))) < 3:
        text = log.read_text() if log else ""
        assert process.poll() is None and time.monotonic() < deadline, text
        time.sleep(0.05)
