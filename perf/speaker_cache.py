"""The cost of the speaker cache, measured through gRPC on the real server.

The encoders are made up and take no time, so the figures are those of the cache and of Triton:

- a warm `resolve`, by one caller and by eight;
- fifty and a thousand requests of one cold voice, and the extractions they cause;
- a thousand voices restored at start;
- ten thousand distinct inline clips: the memory of the cache's process, and whether the registered voices still hit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.cache_calls import Cache
from tests.support.fakes import clip
from tests.support.family_models import make_repository
from tools import guard
from tools.triton_server import TritonServer

MB = 1e6


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="perf/speaker_cache", description=__doc__.partition("\n")[0])
    parser.add_argument("--voices", type=int, default=1000)
    parser.add_argument("--clips", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=3000, help="warm resolves measured")
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    arguments = parser.parse_args()
    with guard.temporary_folder() as scratch:
        figures = {"machine": _machine(), **measure(scratch, arguments)}
    for name, value in figures.items():
        print(f"{name:44} {value}")
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    models = make_repository(scratch / "models", ("qwen3_tts",))
    figures: dict[str, Any] = {}

    def server() -> TritonServer:
        return TritonServer(None, scratch / "voices", models=models, log=scratch / "log")

    with server() as running:
        cache = Cache(running)
        figures.update(_stampede(running, cache))
        began = time.monotonic()
        for number in range(arguments.voices):
            cache("upload", name=f"Voice {number}", audio=_clip(number), options={"wait": number % 50 == 0})
        figures["uploads per second, durable"] = round(arguments.voices / (time.monotonic() - began))
        figures.update(_warm(running, cache, arguments.calls))
        while cache("stats")[0]["in_flight"]:
            time.sleep(0.1)
        cache.close()
    with server() as running:
        cache = Cache(running)
        text = (scratch / "log").read_text(encoding="utf-8")
        figures["voices restored at start"] = len(cache("list")[0]["speakers"])
        figures["... in seconds (loading the model)"] = _loading_seconds(text)
        statuses = {cache("resolve", name=f"Voice {number}")[0]["status"] for number in range(0, arguments.voices, 10)}
        figures["status of restored voices"] = ", ".join(sorted(statuses))
        figures["extractions after the restart"] = cache("stats")[0]["extractions"]
        figures.update(_flood(running, cache, arguments.clips))
        cache.close()
    return figures


def _stampede(server: TritonServer, cache: Cache) -> dict[str, Any]:
    figures = {}
    for callers, requests in ((50, 50), (32, 1000)):
        name = f"Cold {requests}"
        cache("upload", name=name, audio=_clip(10**6 + requests), model_type="qwen3_tts", options={"wait": True})
        cache("prepare", name=name, options={"mode": "x_vector"})
        before = cache("stats")[0]["extractions"]
        caches = [Cache(server) for _ in range(callers)]
        with ThreadPoolExecutor(callers) as pool:
            list(
                pool.map(
                    lambda n: caches[n % callers]("resolve", name=name, options={"mode": "icl"}),  # noqa: B023
                    range(requests),
                )
            )
        for each in caches:
            each.close()
        figures[f"extractions of {requests} requests, one cold voice"] = cache("stats")[0]["extractions"] - before
        cache("delete", name=name)
    return figures


def _warm(server: TritonServer, cache: Cache, calls: int) -> dict[str, Any]:
    cache("resolve", name="Voice 1")
    figures = {}
    for callers in (1, 8):
        caches = [Cache(server) for _ in range(callers)]

        def one(number: int, caches: list[Cache] = caches) -> list[float]:
            spent = []
            for _ in range(calls // len(caches)):
                began = time.perf_counter()
                caches[number]("resolve", name="Voice 1")
                spent.append(1e3 * (time.perf_counter() - began))
            return spent

        with ThreadPoolExecutor(callers) as pool:
            spent = np.array([ms for part in pool.map(one, range(callers)) for ms in part])
        p50, p95, p99 = np.percentile(spent, [50, 95, 99])
        figures[f"warm resolve, {callers} callers: p50 / p95 / p99 ms"] = f"{p50:.2f} / {p95:.2f} / {p99:.2f}"
        for each in caches:
            each.close()
    return figures


def _flood(server: TritonServer, cache: Cache, clips: int) -> dict[str, Any]:
    pid = _process(server)
    before = _resident(pid)
    for number in range(clips):
        cache("resolve", audio=_clip(2 * 10**6 + number))
    after = _resident(pid)
    stats = cache("stats")[0]
    hits = [cache("resolve", name=f"Voice {number}")[0]["status"] for number in range(0, 100, 10)]
    return {
        f"memory before {clips} inline clips, MB": round(before / MB),
        "memory after, MB": round(after / MB),
        "artifacts in memory, MB": round(stats["bytes"] / MB, 1),
        "registered voices then": ", ".join(sorted(set(hits))),
    }


def _clip(seed: int) -> bytes:
    return clip.__wrapped__(seed, 1.0, 8000)


def _process(server: TritonServer) -> int:
    """Process of the speaker_cache model."""
    assert server.process is not None
    found = subprocess.run(
        ["pgrep", "-g", str(server.process.pid), "-f", "speaker_cache"], capture_output=True, text=True, check=True
    )
    return int(found.stdout.split()[0])


def _resident(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _loading_seconds(log: str) -> float:
    """From Triton's log: from the start of the model's process to its readiness."""
    marks = [
        line for line in log.splitlines() if "speaker_cache" in line and ("loading:" in line or "uccessfully" in line)
    ]
    times = [line.split()[1] for line in marks[-2:]]
    seconds = [sum(float(part) * unit for part, unit in zip(t.split(":"), (3600, 60, 1), strict=True)) for t in times]
    return round(seconds[1] - seconds[0], 2)


def _machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, Triton 2.51"


if __name__ == "__main__":
    sys.exit(main())
