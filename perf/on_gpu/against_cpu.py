"""A server on the GPU against one on the CPU, both in fp32: the same clip, the same prompt, the same codes.

encoders    each server registers the clip itself. The codes must be equal; the speaker embedding may differ by rounding
talkers     both get the prompt that the GPU's server made, and speak it greedily. Codes must be equal, but for a tie
            (equality.py): an engine in this process then shows by what margin. After a first difference each hears
            other frames of its own, so only what comes before it is compared
            Latents are never equal, and a difference grows with the frames: of the first ones the RMS is compared
decoders    both get the CPU's codes: RMS of the difference of the samples over their RMS
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from voice_clone_client.aio import AsyncClient

from perf.bench import report
from perf.bench.cache_gain import TEXT
from perf.bench.engine import Ours
from perf.bench.families.family import SEED, Family, Frames
from perf.bench.reference import TRANSCRIPT, fresh_clip
from perf.bench.stage_inputs import Tensors, ask, tensor
from perf.on_gpu import equality
from voice_clone.speakers.voice_file import unpack_bundle
from voice_clone_server.triton_server import TritonServer

VOICE = "measured"
AS_A_CPU = 1e-3
FEW = 8  # frames of latents
STREAMS = "4"  # fewer graphs to record


def measure(family: type[Family], checkpoint: Path, scratch: Path, device: str, frames: int) -> dict[str, Any]:
    """All of it. The servers start side by side."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        servers = []
        for place, kind in (("device", device), ("cpu", "cpu")):
            environment = {"DEVICE": kind, "PRECISION": "fp32", "MAX_STREAMS": STREAMS}
            server = TritonServer(
                checkpoint,
                scratch / f"voices of {place}",
                log=scratch / f"{place}.log",
                environment={f"VOICE_CLONE_{name}": value for name, value in environment.items()},
            )
            stack.callback(server.stop)
            servers.append(server)
        list(pool.map(lambda server: server.start(), servers))
        urls = [server.url for server in servers]
        voices = [asyncio.run(_registered(url)) for url in urls]
        prompt = ask(urls[0], f"{family.name}_prompt", {"text": tensor(TEXT), "voice": tensor(VOICE)})[0]
        codes = [_spoken(family, url, prompt, frames) for url in urls]
        samples = [_decoded(family, url, codes[1]) for url in urls]
    talkers = compared(*(each if each.dtype.kind in "iu" else each[:FEW] for each in codes))
    first = talkers.get("first_difference")
    if first is not None and first < min(map(len, codes)):
        engine, whole = Ours(family, checkpoint, "fp32"), family.read_prompt(prompt)
        talkers["margin"] = equality.margin_after(engine, whole, codes[1][: first + 1], codes[0][first])
        talkers["tie"] = family.tie
    return {
        "encoders": {name: compared(values, voices[1][name]) for name, values in voices[0].items()},
        "talkers": talkers,
        "decoders": apart(samples[0], samples[1]),
    }


def difference(ours: Frames, cpu: Frames) -> dict[str, Any]:
    """Of codes [frames, ...]: the first frame in which they differ, and the share of the CPU's frames before it."""
    shortest = min(len(ours), len(cpu))
    same = (ours[:shortest] == cpu[:shortest]).reshape(shortest, -1).all(axis=1)
    first = int(same.argmin()) if not same.all() else shortest
    equal = first == len(cpu) == len(ours)
    share = first / len(cpu) if len(cpu) else 0.0
    return {"frames": len(cpu), "first_difference": None if equal else first, "equal_before": share}


def apart(ours: NDArray[Any], cpu: NDArray[Any]) -> float | None:
    """RMS of the difference over the RMS; None: they have not the same shape."""
    if ours.shape != cpu.shape:
        return None
    return float(np.sqrt(np.square(ours - cpu).mean() / np.square(cpu).mean()))


def show(found: dict[str, Any]) -> None:
    rows = [[f"encoders: {name}", *_line(of)] for name, of in found["encoders"].items()]
    rows.append(["talkers: codes", *_line(found["talkers"])])
    if "margin" in found["talkers"]:
        name = f"talkers: margin there, a tie up to {found['talkers']['tie']:g}"
        rows.append([name, None, None, None, found["talkers"]["margin"]])
    rows.append(["decoders: samples", None, None, None, found["decoders"]])
    print(f"\nIn fp32, against a CPU; apart, at most {AS_A_CPU:g}\n")
    print(report.table(["what", "frames", "first difference", "equal before it", "apart"], rows))


def faults(found: dict[str, Any]) -> list[str]:
    """What differs."""
    if not found:
        return []
    parts = {f"the encoders' {name}": of for name, of in found["encoders"].items()}
    parts |= {"the talkers' codes": found["talkers"], "the decoders' samples": {"apart": found["decoders"]}}
    wrong = []
    for name, of in parts.items():
        if "apart" in of:
            if of["apart"] is None or not of["apart"] < AS_A_CPU:
                wrong.append(f"{name} are not those of a CPU: apart {of['apart']}")
        elif of["first_difference"] is not None and not of.get("margin", inf) <= of.get("tie", 0.0):
            where = f"frame {of['first_difference']} of {of['frames']}"
            wrong.append(f"{name} differ from a CPU's from {where} on; {of['equal_before']:.1%} are equal before")
    return wrong


def _line(of: dict[str, Any]) -> list[Any]:
    if "apart" in of:
        return [None, None, None, of["apart"]]
    first = "none" if of["first_difference"] is None else of["first_difference"]
    return [of["frames"], first, f"{of['equal_before']:.1%}", None]


def compared(ours: NDArray[Any], cpu: NDArray[Any]) -> dict[str, Any]:
    return difference(ours, cpu) if ours.dtype.kind in "iu" else {"apart": apart(ours, cpu)}


async def _registered(url: str) -> dict[str, NDArray[Any]]:
    """What a server makes of the clip: the tensors that it exports, by their names."""
    async with AsyncClient(url, timeout=600.0) as client:
        await client.upload(VOICE, fresh_clip(0), reference_text=TRANSCRIPT, wait=True)
        [(_, tensors)] = unpack_bundle(await client.export(VOICE, include_audio=False))
    return tensors


def _spoken(family: type[Family], url: str, prompt: Tensors, frames: int) -> Frames:
    greedy = {
        **{name: tensor(value) for name, value in family.greedy_knobs.items()},
        "options": tensor(json.dumps(family.greedy_options)),
        "max_frames": tensor(frames),
        "seed": np.array([SEED], np.uint64),
    }
    return np.concatenate([answer["codes"] for answer in ask(url, f"{family.name}_talker", {**prompt, **greedy})])


def _decoded(family: type[Family], url: str, codes: Frames) -> NDArray[np.float32]:
    chunk = {
        "stream_id": tensor("measured"),
        "codes": codes,
        "context_codes": codes[:0],
        "chunk_index": tensor(0),
        "final": tensor(True),
        "info": tensor(""),
    }
    return np.concatenate([answer["audio"] for answer in ask(url, f"{family.name}_code2wav", chunk)])
