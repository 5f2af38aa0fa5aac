"""Pocket TTS: our server and gateway against the official package's own server, with the same random weights, by HTTP.

Both speak the same text in the voice of the same clip, which they know before, up to the length at which the official
server ends a speech that has no end. Callers ask at once; ours and theirs take turns. The official server runs as it
comes: a thread for each caller.

    first      from the request to the first audio: the median of the callers, and the last one, ms
    whole      until the last caller has all, s
    rtf        whole, over the seconds of a speech: below 1 all callers are in real time
    memory     proportional set sizes (PSS) of all processes, MB: before the first caller, and after the last one

The package is in `.venv/official`; typer, which its server needs, must be in a folder of PYTHONPATH.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
import yaml
from voice_clone_client import Client

from perf.bench import report
from perf.bench.gateway_process import WAIT, Gateway
from tests.support.oracles.packages import PACKAGES
from tests.support.oracles.pocket_tts import official_config
from tools.families.pocket_tts.checkpoint_maker import SHAPES, make_checkpoint, make_endless
from voice_clone.families.pocket_tts.family import CARD
from voice_clone.settings import PRECISIONS
from voice_clone_server.guard import marked
from voice_clone_server.triton_server import MODELS, ROOT, TritonServer, free_ports

TEXT, VOICE, CLIP = "Good morning to all of you.", "Compared", ROOT / "tools" / "data" / "reference.wav"
RATE, FRAME, HEADER = 24000, 1920, 44  # the last: bytes of a WAV file before its samples

Heard = tuple[float, float, int]
"""Seconds to the first audio and to the last, and samples."""


def ask(http: httpx2.Client, path: str, header: int, **body: Any) -> Heard:
    """One call."""
    began, first, seen = time.perf_counter(), 0.0, 0
    with http.stream("POST", path, **body) as answer:
        assert answer.status_code == 200, answer.read()
        for piece in answer.iter_raw():
            seen += len(piece)
            if seen > header and not first:
                first = time.perf_counter() - began
    return first, time.perf_counter() - began, (seen - header) // 2


def memory(pids: Sequence[int]) -> float:
    """MB of processes and of those that they have started."""
    found = 0.0
    for root in map(psutil.Process, pids):
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                found += process.memory_full_info().pss / 1e6
    return found


@contextmanager
def official(checkpoint: Path, scratch: Path) -> Iterator[tuple[Callable[[], Heard], list[int]]]:
    """Their server."""
    config, log, [port] = scratch / "model.yaml", scratch / "official", free_ports(1)
    config.write_text(yaml.safe_dump(official_config(checkpoint)), encoding="utf-8")
    command = [sys.executable, "-m", "pocket_tts", "serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--config", str(config), "--default-voice", str(CLIP)]
    paths = os.pathsep.join((os.environ.get("PYTHONPATH", ""), str(PACKAGES)))
    with log.open("wb") as output:
        environment = marked({**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"})
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=600.0) as http:
            deadline = time.monotonic() + 3 * WAIT
            while True:
                with suppress(httpx2.TransportError):
                    http.get("/health")
                    break
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield lambda: ask(http, "/tts", HEADER, data={"text": TEXT}), [process.pid]
    finally:
        process.terminate()
        process.wait(WAIT)


@contextmanager
def ours(
    checkpoint: Path, scratch: Path, precision: str, frames: int
) -> Iterator[tuple[Callable[[], Heard], list[int]]]:
    """Our server and gateway."""
    environment = {"VOICE_CLONE_DEVICE": "cpu", "VOICE_CLONE_PRECISION": precision}
    log, voices = scratch / f"{precision} log", scratch / f"{precision} voices"
    with TritonServer(checkpoint, voices, log=log, models=[MODELS], environment=environment) as server:
        assert server.process is not None
        with Client(server.url) as client:
            client.upload(VOICE, CLIP.read_bytes(), consent="ours", wait=True)
        gateway = Gateway(server.url, scratch / f"{precision} gateway")
        with gateway, httpx2.Client(base_url=gateway.url, timeout=600.0) as http:
            body = {"input": TEXT, "voice": VOICE, "model": CARD.name, "response_format": "pcm", "max_frames": frames}
            yield lambda: ask(http, "/v1/audio/speech", 0, json=body), [server.process.pid, gateway.process.pid]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="100m")
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", default=["fp32", "int8"])
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    given = parser.parse_args(arguments)
    rows: list[list[Any]] = []
    held: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        make_checkpoint(given.shape, 0, scratch / "made", "fp32")
        checkpoint = make_endless(scratch / "made", scratch / "endless")
        with official(checkpoint, scratch) as theirs:
            frames = theirs[0]()[2] // FRAME
            for precision in given.precision:
                with ours(checkpoint, scratch, precision, frames) as own:
                    assert own[0]()[2] == frames * FRAME
                    servers = {"official": theirs, precision: own}
                    held = {**{name: [memory(pids)] for name, (_, pids) in servers.items()}, **held}
                    for callers in given.callers:
                        runs: dict[str, list[list[Heard]]] = {}
                        for _ in range(given.runs):
                            for name, (call, _pids) in servers.items():
                                with ThreadPoolExecutor(callers) as pool:
                                    heard = [pool.submit(call) for _ in range(callers)]
                                runs.setdefault(name, []).append([each.result() for each in heard])
                        rows += [[name, precision, callers, *figures(found)] for name, found in runs.items()]
                        print(*rows[-2:], sep="\n", flush=True)
                    for name, (_, pids) in servers.items():
                        held[name][1:] = [memory(pids)]
    columns = "server", "in turns with", "callers", "first, ms", "last first, ms", "whole, s", "rtf"
    print(report.table(columns, rows), held, sep="\n")
    report.write(given.output, {"columns": columns, "figures": rows, "memory": held, "frames": frames})
    return 0


def figures(runs: Sequence[Sequence[Heard]]) -> list[float]:
    """Medians of the runs, in the order of the columns."""
    first, last, whole = (
        statistics.median(of(each[place] for each in run) for run in runs)
        for place, of in ((0, statistics.median), (0, max), (1, max))
    )
    return [1e3 * first, 1e3 * last, whole, whole * RATE / runs[0][0][2]]


if __name__ == "__main__":
    sys.exit(main())
