"""A server that has just been started gives way to the process that started it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from voice_clone_server.triton_server import NICE, give_way

STARTED_UNDER = """
import contextlib, json, os, subprocess, sys
from pathlib import Path
from voice_clone_server.triton_server import give_way

def levels(process):
    session = Path(f"/proc/{process}/autogroup")
    words = session.read_text().split() if session.exists() else []
    return os.getpriority(os.PRIO_PROCESS, process), int(words[-1]) if words else None

os.nice(int(sys.argv[1]))
while levels(os.getpid())[1] not in (None, int(sys.argv[2])):
    with contextlib.suppress(BlockingIOError):  # users who are not root may change one level in 0.1 s
        Path("/proc/self/autogroup").write_text(sys.argv[2])
server = subprocess.Popen(["sleep", "600"], start_new_session=True)
give_way(server.pid)
print(json.dumps([levels(os.getpid()), levels(server.pid)]))
server.kill()
server.wait()
"""


@pytest.mark.parametrize(("process", "session"), [(0, 0), (7, 3), (1, 17), (16, 0)])
def test_a_server_is_below_the_process_that_started_it(process: int, session: int) -> None:
    """And its session below all that have their first level, which do not have the level of their starter."""
    command = [sys.executable, "-c", STARTED_UNDER, str(process), str(session)]
    done = subprocess.run(command, start_new_session=True, stdout=subprocess.PIPE, check=True)
    (ours, our_session), of_server = json.loads(done.stdout)
    assert of_server == [min(19, ours + NICE), None if our_session is None else NICE]


def test_a_server_that_has_ended() -> None:
    server = subprocess.Popen(["true"], start_new_session=True)
    server.wait()
    give_way(server.pid)
