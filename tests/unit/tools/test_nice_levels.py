"""A server gives way to other sessions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from voice_clone_server.triton_server import NICE, give_way


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this system has no levels of sessions")
def test_a_session_is_below_new_ones() -> None:
    """Their level is 0, whatever the level of their starter is."""
    with (
        subprocess.Popen(["sleep", "600"], start_new_session=True) as server,
        subprocess.Popen(["sleep", "600"], start_new_session=True) as other,
    ):
        give_way(server.pid)
        levels = [Path(f"/proc/{each.pid}/autogroup").read_text().split()[-1] for each in (server, other)]
        server.kill()
        other.kill()
    assert levels == [str(NICE), "0"]


def test_a_server_that_has_ended() -> None:
    server = subprocess.Popen(["true"], start_new_session=True)
    server.wait()
    give_way(server.pid)
