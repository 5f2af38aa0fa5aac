"""The whole server on a GPU: it registers a voice, speaks in every way, is left, restarts, and agrees with a CPU.

known       first audio of a voice by its name: in context, and by the speaker embedding alone
cold        of a clip that the server has never seen, sent with its transcript
restored    of the voice, in the first request after a restart
callers     so many at once, again and again, and requests at random times: perf/load's figures
left        callers that hang up after a few chunks: each speech ends as cancelled, and the next one is whole
as a CPU    the same greedy speech in fp32 by a server on the device and by one on the CPU: RMS of the difference over
            the RMS. Other codes would make other speech.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from voice_clone_client.aio import AsyncClient

from perf import load, report
from perf.cache_gain import TEXT, first_audio
from perf.reference import TRANSCRIPT, fresh_clip
from tools.triton_server import TritonServer

VOICE = "measured"
AS_A_CPU = 1e-3


def measure(checkpoint: Path, scratch: Path, given: argparse.Namespace) -> dict[str, Any]:
    """All of it. `given` has device, frames, runs, callers and rates."""
    voices, log, environment = scratch / "voices", scratch / "server.log", {"VOICE_CLONE_DEVICE": given.device}
    began = time.perf_counter()
    with TritonServer(checkpoint, voices, log=log, environment=environment) as server:
        url, metrics = f"localhost:{server.grpc_port}", f"localhost:{server.metrics_port}"
        found: dict[str, Any] = {"load_seconds": round(time.perf_counter() - began, 1)}
        found |= asyncio.run(_voices(url, given.runs, given.frames))
        found["load"] = asyncio.run(load.run(url, metrics, _level(given, given.callers, given.rates, 0.0)))
        found["left"] = asyncio.run(load.run(url, metrics, _level(given, [given.callers[-1]], [], 1.0)))
        found["whole_after_leaving_ms"] = asyncio.run(_again(url))[0]
    with TritonServer(checkpoint, voices, log=log, environment=environment) as server:
        found["restored_ms"], found["restored"] = asyncio.run(_again(f"localhost:{server.grpc_port}"))
    spoken = []
    for device in (given.device, "cpu"):
        fp32 = {"VOICE_CLONE_DEVICE": device, "VOICE_CLONE_PRECISION": "fp32"}
        with TritonServer(checkpoint, voices, log=log, environment=fp32) as server:
            spoken.append(asyncio.run(_greedy(f"localhost:{server.grpc_port}", given.frames)))
    same = len(spoken[0]) == len(spoken[1])
    found["as_a_cpu"] = _apart(*spoken) if same else None
    found["failed"] = list(_faults(found))
    return found


def show(found: dict[str, Any]) -> None:
    """The table, and what failed."""
    print(f"\nThrough Triton, loaded in {found['load_seconds']} s; first audio in ms\n")
    kinds = {**found["first_audio_ms"], "restored": report.summary([found["restored_ms"]])}
    print(
        report.table(
            ["voice", "p50", "most", "n"], [[kind, of["p50"], of["max"], of["n"]] for kind, of in kinds.items()]
        )
    )
    print()
    print(report.table(load.COLUMNS, [load.row(each) for each in (*found["load"], *found["left"])]))
    print(f"\ngreedy speech in fp32, apart from a CPU's: {found['as_a_cpu']}, allowed {AS_A_CPU}")
    print("\n".join(f"FAILED: {fault}" for fault in found["failed"]) or "all as it should be")


def _level(given: argparse.Namespace, callers: list[int], rates: list[float], cancel: float) -> argparse.Namespace:
    """Arguments of `load.run`."""
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
        requests=max(2 * callers[-1], given.runs),
    )


async def _voices(url: str, runs: int, frames: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {"in context": [], "x-vector": [], "cold": []}
    async with AsyncClient(url, timeout=600.0) as client:
        began = time.perf_counter()
        await client.upload(VOICE, fresh_clip(0), reference_text=TRANSCRIPT, wait=True)
        registered = 1e3 * (time.perf_counter() - began)
        for run in range(runs + 1):
            sent = {"reference_audio": fresh_clip(10**3 + run), "reference_text": TRANSCRIPT}
            ways: dict[str, dict[str, Any]] = {
                "in context": {"voice": VOICE},
                "x-vector": {"voice": VOICE, "x_vector_only": True},
                "cold": sent,
            }
            for kind, voice in ways.items():
                spent, _ = await first_audio(client, frames, **voice)
                if run:  # the first of each does not count
                    times[kind].append(spent)
    return {
        "registered_ms": round(registered, 1),
        "first_audio_ms": {kind: report.summary(each) for kind, each in times.items()},
    }


async def _again(url: str) -> tuple[float, str]:
    async with AsyncClient(url, timeout=600.0) as client:
        spent, told = await first_audio(client, voice=VOICE)
    return spent, str(told["cache"])


async def _greedy(url: str, frames: int) -> NDArray[np.float32]:
    pieces = []
    knobs: dict[str, Any] = {"do_sample": False, "options": {"subtalker_do_sample": False}}
    async with (
        AsyncClient(url, timeout=600.0) as client,
        client.speak(TEXT, voice=VOICE, seed=1, max_frames=frames, **knobs) as speech,
    ):
        async for chunk in speech:
            pieces.append(chunk.samples)
    return np.concatenate(pieces)


def _apart(ours: NDArray[np.float32], cpu: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.square(ours - cpu).mean() / np.square(cpu).mean()))


def _faults(found: dict[str, Any]) -> Any:
    for level in found["load"]:
        if level["errors"]:
            yield f"{level['load']}: {level['errors']}"
    for level in found["left"]:
        if set(level["errors"]) - {"cancelled"}:
            yield f"callers that leave: {level['errors']}"
    if found["restored"] not in ("hit", "restored"):
        yield f"after a restart the voice was a {found['restored']}"
    if found["as_a_cpu"] is None or not found["as_a_cpu"] < AS_A_CPU:
        yield f"the speech is not that of a CPU: apart {found['as_a_cpu']}"
