"""Texts in the memory of processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.servers.server_processes import processes
from voice_clone_server.triton_server import TritonServer

PIECE = 4 << 20  # bytes that are read at once

OVERWRITTEN = {
    "PYTHONMALLOC": "malloc",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.perturb=85",
}
"""The environment of a process whose memory is overwritten when it is freed: what is found is held."""


def found_in_server(server: TritonServer, texts: Sequence[bytes]) -> dict[str, int]:
    """How often the texts stand in the memory of each process of a server; processes without them are left out."""
    counts: dict[str, int] = {}
    for pid in processes(server):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        name = words[1].split("/")[-3] if "stub" in words[0] else "tritonserver"
        counts[name] = found(pid, texts)
    return {name: count for name, count in counts.items() if count}


def found(pid: int, texts: Sequence[bytes]) -> int:
    """How often the texts stand in what a process can write, mapped files left out."""
    count = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights, *rest = line.split(maxsplit=5)
        path = rest[3] if len(rest) > 3 else ""
        if rights.startswith("rw") and (path.startswith("/dev/shm") or not path.startswith("/")):
            first, last = (int(address, 16) for address in span.split("-"))
            count += _count(pid, first, last, texts)
    return count


def _count(pid: int, first: int, last: int, texts: Sequence[bytes]) -> int:
    count, overlap = 0, b""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(first)
        while first < last:
            try:
                piece = memory.read(min(PIECE, last - first))
            except OSError:  # a guard page
                break
            if not piece:
                break
            seen = overlap + piece
            count += sum(seen.count(text) for text in texts)
            overlap, first = seen[1 - max(map(len, texts)) :], first + len(piece)
    return count
