"""What models at rest give back, and what the next caller of each family waits for.

One server has all families that are given. Memory is the proportional set size (PSS) of its processes in MB: after a
speech in each family, when all models rest, and after the next speech in each. Then a family in turn speaks when all
rest: seconds to its first audio, and whether it sounds as before.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray
from voice_clone_client import Client

from perf.bench.report import summary, table, write
from voice_clone_server.demo import CLIP, SHIPPED
from voice_clone_server.triton_server import TritonServer

TEXT, VOICE = "My sister wants a new car.", "Ada"
WAIT = 300.0  # seconds
PERIOD = 0.02  # seconds between two looks
SETTLED = 1.0  # seconds after which encoders rest, too


def memory(server: TritonServer) -> Counter[str]:
    """MB of the server's processes, by what they are."""
    assert server.process is not None
    found = Counter(tritonserver=round(psutil.Process(server.process.pid).memory_full_info().pss / 1e6))
    for child in psutil.Process(server.process.pid).children():
        name = child.cmdline()[1].split("/")[-3]
        kind = next((kind for kind in ("talker", "code2wav", "voice_encoder") if name.endswith(kind)), "")
        found[name if kind else "others"] += round(child.memory_full_info().pss / 1e6)
    return found


def first_audio(client: Client, family: str, frames: int) -> tuple[float, NDArray[np.float32]]:
    """Seconds until the first audio of a speech, and its samples."""
    began, heard, parts = time.monotonic(), 0.0, []
    for chunk in client.speak(TEXT, voice=VOICE, model=family, seed=1, max_frames=frames):
        heard = heard or time.monotonic() - began
        parts.append(chunk.samples)
    return heard, np.concatenate(parts)


def until_rest(client: Client, seconds: float) -> None:
    """Wait until all models rest. Raises: AssertionError: they do not."""
    deadline = time.monotonic() + WAIT
    while not all(kept and kept.get("resting") for kept in client.stats()["kept"].values()):
        assert time.monotonic() < deadline, client.stats()["kept"]
        time.sleep(PERIOD)
    time.sleep(SETTLED + seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, action="append", help="one for each family (default: the demo's)")
    parser.add_argument("--seconds", type=float, default=2.0, help="without work after which a model rests")
    parser.add_argument("--wakes", type=int, default=20, help="of each family")
    parser.add_argument("--frames", type=int, default=12, help="of a speech")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    environment = {"VOICE_CLONE_REST_MINUTES": str(given.seconds / 60)}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        server = TritonServer(
            given.checkpoint or [SHIPPED],
            place / "voices",
            log=place / "log",
            environment=environment,
        )
        with server.start(WAIT), Client(server.url) as client:
            client.upload(VOICE, CLIP, reference_text="A voice.", wait=True)
            families = list(server.families)
            before = {family: first_audio(client, family, given.frames)[1] for family in families}
            awake = {family: [first_audio(client, family, given.frames)[0] for _ in range(5)] for family in families}
            columns = {"awake": memory(server)}
            until_rest(client, given.seconds)
            columns["at rest"] = memory(server)
            same = [np.array_equal(first_audio(client, family, given.frames)[1], before[family]) for family in families]
            columns["awake again"] = memory(server)
            waits: dict[str, list[float]] = {family: [] for family in families}
            for _ in range(given.wakes):
                for family in families:
                    until_rest(client, 0.0)
                    seconds, samples = first_audio(client, family, given.frames)
                    waits[family].append(seconds)
                    same.append(np.array_equal(samples, before[family]))
            server.kill()
    rows = [[name, *(column[name] for column in columns.values())] for name in columns["awake"]]
    rows.append(["sum", *(column.total() for column in columns.values())])
    print(table(["MB", *columns], rows))
    figures = {
        "rest_after_s": given.seconds,
        "frames": given.frames,
        "memory_mb": columns,
        "first_audio_of_a_rest_s": {family: summary(found) for family, found in waits.items()},
        "first_audio_awake_s": {family: summary(found) for family, found in awake.items()},
        "speeches": len(same),
        "as_before": sum(same),
    }
    print(json.dumps({name: value for name, value in figures.items() if name != "memory_mb"}, indent=1))
    write(given.json, figures)
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
