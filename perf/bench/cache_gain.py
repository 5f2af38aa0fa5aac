"""What a registered voice saves: first audio with the clip sent along against first audio by its name.

For each length of the reference, in turn and `--runs` times, so that a slow moment of the machine affects all alike:

    cold        a clip that the server has never seen, sent with the request: encoded, cached by its content
    sent again  the same clip once more: found by its content
    warm        a registered voice
    restored    the same voice, first request after a restart of the server: read from disk, not encoded
    stampede    `--stampede` requests at once with one unknown clip: the number of extractions
    resolve     `--resolves` looks at a warm voice in the cache alone, by one caller and by eight, without speech

Time is from the request to the first samples at the client, or to the answer, in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voice_clone_client.aio import AsyncClient
from voice_clone_client.errors import Unsupported

from perf.bench import report
from perf.bench.reference import TRANSCRIPT, fresh_clip
from voice_clone_server import guard
from voice_clone_server.triton_server import TritonServer

TEXT = "The boats lay still on the silver water."
KINDS = ("cold", "sent again", "warm", "restored")
CALLERS = (1, 8)  # of `resolve`


async def first_audio(client: AsyncClient, frames: int = 3, **voice: Any) -> tuple[float, Mapping[str, Any]]:
    """Milliseconds to the first samples of a short speech, and the server's info."""
    began = time.perf_counter()
    first, info = None, None
    async with client.speak(TEXT, seed=1, max_frames=frames, **voice) as speech:
        async for chunk in speech:
            if first is None and len(chunk.samples):
                first = 1e3 * (time.perf_counter() - began)
            info = info or chunk.info
    if first is None or info is None:
        raise RuntimeError("a speech had no samples")
    return first, info


def name(seconds: float, run: int) -> str:
    """The registered voice of one length and run."""
    return f"gain {seconds:g} s {run}"


async def resolves(client: AsyncClient, voice: str, count: int) -> dict[str, dict[str, float]]:
    """Times of `count` resolves of a warm voice, by so many callers at once; none if the family has no embeddings."""
    found = {}
    for callers in CALLERS:
        times: list[float] = []

        async def caller(calls: int, times: list[float] = times) -> None:
            for _ in range(calls):
                began = time.perf_counter()
                await client.speaker_embedding(voice)
                times.append(1e3 * (time.perf_counter() - began))

        try:
            await asyncio.gather(*(caller(count // callers) for _ in range(callers)))
        except Unsupported:
            return {}
        found[f"{callers} callers"] = report.summary(times)
    return found


async def before_restart(url: str, given: argparse.Namespace) -> dict[str, Any]:
    """Registers the voices; times cold, sent again and warm."""
    lengths, runs, stampede = given.lengths, given.runs, given.stampede
    times: dict[float, dict[str, list[float]]] = {seconds: {kind: [] for kind in KINDS} for seconds in lengths}
    statuses: Counter[str] = Counter()
    async with AsyncClient(url, timeout=600.0) as client:
        for seconds in lengths:
            for run in range(runs):
                clip = fresh_clip(run, seconds)
                await client.upload(name(seconds, run), clip, reference_text=TRANSCRIPT, wait=True)
        await first_audio(client, reference_audio=fresh_clip(10**6), reference_text=TRANSCRIPT)  # does not count
        for run in range(runs):
            for seconds in lengths:
                sent = {"reference_audio": fresh_clip(10**3 + run, seconds), "reference_text": TRANSCRIPT}
                await first_audio(client, voice=name(seconds, run))  # primes the decoder
                for kind, voice in (("cold", sent), ("sent again", sent), ("warm", {"voice": name(seconds, run)})):
                    spent, info = await first_audio(client, **voice)
                    times[seconds][kind].append(spent)
                    statuses[f"{kind}: {info['cache']}"] += 1
        before = await client.stats()
        rush = {"reference_audio": fresh_clip(10**7), "reference_text": TRANSCRIPT}
        await asyncio.gather(*(first_audio(client, frames=1, **rush) for _ in range(stampede)))
        after = await client.stats()
        warm = await resolves(client, name(lengths[0], 0), given.resolves)
    return {
        "times": times,
        "statuses": statuses,
        "stampede": {"requests": stampede, "extractions": after["extractions"] - before["extractions"]},
        "resolve": warm,
    }


async def after_restart(url: str, found: dict[str, Any], runs: int) -> None:
    """Times restored voices, and warm ones beside them."""
    async with AsyncClient(url, timeout=600.0) as client:
        await first_audio(client, reference_audio=fresh_clip(10**6 + 1), reference_text=TRANSCRIPT)  # does not count
        before = (await client.stats())["extractions"]
        for run in range(runs):
            for seconds, kinds in found["times"].items():
                spent, info = await first_audio(client, voice=name(seconds, run))
                kinds["restored"].append(spent)
                found["statuses"][f"restored: {info['cache']}"] += 1
        found["extractions after the restart"] = (await client.stats())["extractions"] - before


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/cache_gain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--lengths", type=float, nargs="+", default=[3.0, 10.0, 30.0], help="seconds of reference")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--stampede", type=int, default=32)
    parser.add_argument("--resolves", type=int, default=1000, help="by each number of callers")
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    given = parser.parse_args()
    with guard.temporary_folder() as scratch:
        voices, log = scratch / "voices", scratch / "log"
        with TritonServer(given.checkpoint, voices, log=log) as server:
            url = f"localhost:{server.grpc_port}"
            found = asyncio.run(before_restart(url, given))
        with TritonServer(given.checkpoint, voices, log=log) as server:
            asyncio.run(after_restart(f"localhost:{server.grpc_port}", found, given.runs))
    rows = []
    for seconds, kinds in found["times"].items():
        medians = {kind: statistics.median(times) for kind, times in kinds.items()}
        spread = [f"{medians[kind]:.0f} ({min(kinds[kind]):.0f}-{max(kinds[kind]):.0f})" for kind in KINDS]
        ratios = [f"{medians[kind] / medians['cold']:.2f}" for kind in ("warm", "restored")]
        rows.append([f"{seconds:g} s", *spread, *ratios])
    print(report.table(("reference", *KINDS, "warm / cold", "restored / cold"), rows))
    rush = found["stampede"]
    print(f"\n{rush['requests']} requests at once of one unknown clip: {rush['extractions']} extraction(s)")
    for callers, times in found["resolve"].items():
        middle = ", ".join(f"{p} {times[p]:.2f}" for p in ("p50", "p95", "p99"))
        print(f"resolve of a warm voice, {callers}: {middle} ms")
    print(f"extractions after the restart: {found['extractions after the restart']}")
    print(f"cache statuses: {dict(found['statuses'])}")
    report.write(given.output, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
