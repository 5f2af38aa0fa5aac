"""The whole server on a GPU: it registers a voice, speaks in every way, is left, and restarts.

voices      first audio of a voice by its name: in context, and by the speaker embedding alone, where the family has
            one; of a clip that the server has never seen, sent with its transcript (`cold`)
load        so many callers at once, again and again, and requests at random times: perf/load's figures
leaving     callers that hang up after a few chunks: each speech ends as cancelled, and the next one is whole
minutes     of load, with the memory of the server's processes and of the GPU beside it: perf/on_gpu/minutes.py
restart     the voice again, in the first request after it (`restored`)
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from voice_clone_client.aio import AsyncClient

from perf.bench import load, report
from perf.bench.cache_gain import first_audio
from perf.bench.families import FAMILIES
from perf.bench.reference import TRANSCRIPT, fresh_clip
from perf.on_gpu import minutes
from perf.on_gpu.phases import SERVER, Phases
from voice_clone_server.triton_server import TritonServer

VOICE = "measured"


def measure(
    checkpoint: Path, scratch: Path, given: argparse.Namespace, found: dict[str, Any], progress: Phases
) -> None:
    """The phases of `given.phases`; each puts its part into `found`."""
    phases = [phase for phase in SERVER if phase in given.phases]
    if not phases and not given.minutes:
        return
    voices, log = scratch / "voices", scratch / "server.log"
    environment = {"VOICE_CLONE_DEVICE": given.device}
    if not progress.begins("the server starts"):
        return
    began = time.perf_counter()
    with TritonServer(checkpoint, voices, log=log, environment=environment) as server:
        found["load_seconds"] = round(time.perf_counter() - began, 1)
        metrics = f"localhost:{server.metrics_port}"
        found["registered_ms"] = asyncio.run(_register(server.url))
        progress.keep()
        if "voices" in phases and progress.begins("voices in every way"):
            embeddings = FAMILIES[given.family].embeddings
            if not embeddings:
                progress.leave_out("a voice by its embedding", f"{given.family} has no speaker embedding")
            found["first_audio_ms"] = asyncio.run(_voices(server.url, given.runs, given.frames, embeddings))
        if "load" in phases:
            found["load"] = []
            levels = {f"{each:g} callers": _level(given, [each], []) for each in given.callers}
            levels |= {f"{each:g} requests a second": _level(given, [], [each]) for each in given.rates}
            for name, level in levels.items():
                if progress.begins(f"load: {name}"):
                    found["load"] += asyncio.run(load.run(server.url, metrics, level))
        if "leaving" in phases and progress.begins("callers that leave"):
            leavers = _level(given, [max(given.callers)], [], cancel=1.0)
            found["left"] = asyncio.run(load.run(server.url, metrics, leavers))
            found["whole_after_leaving_ms"] = asyncio.run(_again(server.url))[0]
        if given.minutes and progress.begins(f"{given.minutes:g} minutes of load"):
            level = _level(given, [max(given.callers)], [])
            found["minutes"] = {}
            asyncio.run(minutes.run(server, level, given, found["minutes"], progress.keep))
    if "restart" in phases and progress.begins("the server restarts"):
        with TritonServer(checkpoint, voices, log=log, environment=environment) as server:
            found["restored_ms"], found["restored"] = asyncio.run(_again(server.url))


def show(found: dict[str, Any]) -> None:
    """The tables."""
    print(f"\nThrough Triton, loaded in {found.get('load_seconds', '?')} s; first audio in ms\n")
    kinds = dict(found.get("first_audio_ms", {}))
    if "restored_ms" in found:
        kinds["restored"] = report.summary([found["restored_ms"]])
    if kinds:
        rows = [[kind, of["p50"], of["max"], of["n"]] for kind, of in kinds.items()]
        print(report.table(["voice", "p50", "most", "n"], rows) + "\n")
    levels = [*found.get("load", []), *found.get("left", []), *found.get("minutes", {}).get("load", [])]
    if levels:
        print(report.table(load.COLUMNS, [load.row(each) for each in levels]))


def faults(found: dict[str, Any]) -> list[str]:
    """What must not be."""
    wrong = []
    for level in (*found.get("load", []), *found.get("minutes", {}).get("load", [])):
        if level["errors"]:
            wrong.append(f"{level['load']}: {level['errors']}")
    for level in found.get("left", []):
        if set(level["errors"]) - {"cancelled"}:
            wrong.append(f"callers that leave: {level['errors']}")
    if found.get("restored", "hit") not in ("hit", "restored"):
        wrong.append(f"after a restart the voice was a {found['restored']}")
    return wrong


def _level(
    given: argparse.Namespace, callers: list[int], rates: list[float], cancel: float = 0.0
) -> argparse.Namespace:
    """Arguments of `load.run`: seconds of load, or as many requests as callers that leave."""
    return argparse.Namespace(
        hit=1.0,
        icl=1.0,
        cancel=cancel,
        max_frames=given.frames,
        voices=4,
        seed=0,
        warm_up=2,
        concurrency=callers,
        rate=rates,
        seconds=None if cancel else given.seconds,
        requests=sum(callers),
    )


async def _register(url: str) -> float:
    """Milliseconds."""
    async with AsyncClient(url, timeout=600.0) as client:
        began = time.perf_counter()
        await client.upload(VOICE, fresh_clip(0), reference_text=TRANSCRIPT, wait=True)
        return round(1e3 * (time.perf_counter() - began), 1)


async def _voices(url: str, runs: int, frames: int, embeddings: bool) -> dict[str, Any]:
    times: defaultdict[str, list[float]] = defaultdict(list)
    async with AsyncClient(url, timeout=600.0) as client:
        for run in range(runs + 1):
            sent = {"reference_audio": fresh_clip(10**3 + run), "reference_text": TRANSCRIPT}
            ways: dict[str, dict[str, Any]] = {"in context": {"voice": VOICE}, "cold": sent}
            if embeddings:
                ways["x-vector"] = {"voice": VOICE, "x_vector_only": True}
            for kind, voice in ways.items():
                spent, _ = await first_audio(client, frames, **voice)
                if run:  # the first of each does not count
                    times[kind].append(spent)
    return {kind: report.summary(each) for kind, each in times.items()}


async def _again(url: str) -> tuple[float, str]:
    async with AsyncClient(url, timeout=600.0) as client:
        spent, info = await first_audio(client, voice=VOICE)
    return spent, str(info["cache"])
