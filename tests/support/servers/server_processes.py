"""The processes of a running server: the server itself and its models' stubs."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import psutil

from voice_clone_server.triton_server import TritonServer


def processes(server: TritonServer, states: str = "") -> list[int]:
    """Process ids; `states`, such as "S,R,D", leaves out processes in other states."""
    assert server.process is not None
    only = ["-r", states] if states else []
    listed = subprocess.run(["pgrep", "-g", str(server.process.pid), *only], capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]


def process_of(model: str, server: TritonServer) -> int:
    """The process id of a model's stub."""
    assert server.process is not None
    children = psutil.Process(server.process.pid).children()
    found: int
    [found] = [child.pid for child in children if f"/{model}/" in " ".join(child.cmdline())]
    return found


def memory(pid: int, *kinds: str) -> int:
    """Bytes of a process, of these kinds of /proc/PID/status; one that has just ended has none."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    sizes = dict(line.split(":", 1) for line in status.splitlines())
    return sum(1024 * int(sizes.get(kind, "0").split()[0]) for kind in kinds)


def private_memory(server: TritonServer) -> int:
    """Bytes of all the server's processes that no other process shares."""
    return sum(memory(pid, "RssAnon") for pid in processes(server))


def memory_by_process(server: TritonServer) -> dict[str, int]:
    """Bytes in memory of each of the server's processes alone, and of what they share; files left out."""
    made = {"shared memory": sum(512 * region.stat().st_blocks for region in server.regions())}
    for pid in processes(server):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # of a process that has just ended
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            name = words[1].split("/")[-3] if "stub" in words[0] else "tritonserver"
            made[name] = made.get(name, 0) + memory(pid, "RssAnon")
    return made
