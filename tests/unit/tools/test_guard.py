"""What a tool has started ends with it, whatever ends it, and its temporary folders go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.left_behind import processes_of, wait_until_gone
from tests.support.waiting import WAIT, until
from voice_clone_server import guard
from voice_clone_server.triton_server import ROOT

# A tool: it starts a process in a session of its own, which starts another one; then it waits, or ends.
TOOL = """
import os, subprocess, sys, time
from pathlib import Path
from voice_clone_server import guard

child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(100)'])"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True, env=guard.marked())
folder = Path(sys.argv[1])
folder.mkdir()
(folder / "weights").write_bytes(b"half")
guard.remove_at_end(folder, str(folder.with_name("region*")))
folder.with_name("region_1").touch()
folder.with_name("another").touch()
if os.fork() == 0:
    time.sleep(100)
    os._exit(0)
with guard.temporary_folder() as scratch:
    print(scratch, flush=True)
    if sys.argv[2] == "waits":
        time.sleep(100)
    if sys.argv[2] == "crashes":
        os.abort()
"""


def start(tmp_path: Path, how: str) -> tuple[subprocess.Popen[str], str, Path]:
    """The tool, its mark and its temporary folder, once two processes have the mark."""
    tool = subprocess.Popen(
        [sys.executable, "-c", TOOL, str(tmp_path / "half"), how],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert tool.stdout is not None
    return tool, str(tool.pid), Path(tool.stdout.readline().strip())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_tool_that_is_killed_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    tool, pid, scratch = start(tmp_path, "waits")
    with tool:
        until(lambda: len(processes_of(pid)) >= 2)
        assert scratch.is_dir()
        tool.send_signal(number)
        assert tool.wait(WAIT) != 0
    wait_until_gone(pid)  # though the fork lives
    os.killpg(tool.pid, signal.SIGKILL)
    until(lambda: not any(path.exists() for path in (tmp_path / "half", tmp_path / "region_1", scratch)))
    assert [path.name for path in tmp_path.iterdir()] == ["another"]


@pytest.mark.parametrize("how", ["crashes", "ends"])
def test_a_tool_that_ends_leaves_nothing(tmp_path: Path, how: str) -> None:
    tool, pid, _ = start(tmp_path, how)
    with tool:
        assert tool.wait(WAIT) == (-signal.SIGABRT if how == "crashes" else 0)
    wait_until_gone(pid)
    os.killpg(tool.pid, signal.SIGKILL)


def test_a_process_that_ignores_signals_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "GRACE", 0.5)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(100)"
    environment = {**os.environ, guard.VARIABLE: "0-test"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"x\n"
        guard._end(f"{guard.VARIABLE}=0-test".encode())
        assert process.wait(WAIT) == -signal.SIGKILL


def test_the_guard_of_a_tool_is_not_ended_by_another_s(tmp_path: Path) -> None:
    """A tool that a tool has started has the mark; its own guard does not, and a mark of its own is another one."""
    environment = guard.marked({"PATH": os.environ["PATH"]})
    assert set(environment) == {"PATH", guard.VARIABLE}
    code = "import os; from voice_clone_server.guard import *; print(os.environ[VARIABLE], marked()[VARIABLE])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    outer, inner = done.stdout.split()
    assert outer == environment[guard.VARIABLE] and inner != outer
