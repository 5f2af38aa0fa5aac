"""Processes that die are noticed, and only those of models, and only when they are dead."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from voice_clone.triton.lost_models import NAME, LostModels

WAIT = 30.0
EXIT = {"x86_64": 60, "aarch64": 93}  # numbers of the system call that ends one thread

# A server that starts these processes and cares about none of them; it ends at SIGTERM.
SERVER = """
import subprocess, sys, time
children = [subprocess.Popen([sys.executable, "-c", code]) for code in sys.argv[1:]]
print("ready", flush=True)
time.sleep(600)
"""

RENAME = f"open('/proc/self/comm', 'w').write({NAME!r})\n"
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
LIVES = "import time; time.sleep(600)"
LEADER_ENDS = (  # the process goes on with its other thread, though it looks like a zombie
    "import ctypes, threading, time\n"
    "threading.Thread(target=time.sleep, args=(600,)).start()\n"
    f"ctypes.CDLL(None).syscall({EXIT.get(platform.machine(), 0)}, 0)"
)


@pytest.fixture(autouse=True)
def own_name() -> Iterator[None]:
    path = Path("/proc/self/comm")
    before = path.read_text()
    yield
    path.write_text(before)


def watched(*codes: str, seconds: float = WAIT) -> int | None:
    """Status of a server with these processes after some time under watch; None: it runs."""
    with subprocess.Popen([sys.executable, "-c", SERVER, *codes], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        children = [int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]
        watch = LostModels(server.pid, period=0.05)
        try:
            return server.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            watch.close()
            for process in (*children, server.pid):
                subprocess.run(["kill", "-KILL", str(process)], stderr=subprocess.DEVNULL, check=False)


def test_a_lost_model_ends_its_server() -> None:
    assert watched(RENAME + LIVES, RENAME + DIES) == -signal.SIGTERM


def test_a_process_that_is_no_model_may_die() -> None:
    assert watched(DIES, RENAME + LIVES, seconds=2.0) is None


@pytest.mark.skipif(platform.machine() not in EXIT, reason="the number of the system call is not known here")
def test_a_process_that_still_has_a_thread_is_not_dead() -> None:
    assert watched(RENAME + LEADER_ENDS, seconds=2.0) is None


def test_a_watch_that_is_closed_ends_nothing() -> None:
    threads = threading.active_count()
    began = time.monotonic()
    LostModels(1, period=WAIT).close()
    assert threading.active_count() == threads and time.monotonic() - began < WAIT / 2
