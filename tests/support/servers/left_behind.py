"""The processes that a tool has started, by the mark of its guard."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from tests.support.waiting import WAIT
from voice_clone_server.guard import VARIABLE


def processes_of(tool: str) -> list[str]:
    """The command lines of what the tool with this process id has started, itself or through others."""
    mark, found = f"{VARIABLE}={tool}-".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"\0" + mark in b"\0" + (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def wait_until_gone(tool: str) -> None:
    """Wait until no process is left that this tool has started."""
    deadline = time.monotonic() + WAIT
    while left := processes_of(tool):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)
