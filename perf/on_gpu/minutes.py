"""Minutes of load on a server, its memory sampled meanwhile: it must not grow."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from perf.bench import load
from perf.bench.memory import shares, usage
from voice_clone_server.triton_server import TritonServer

SAMPLES = 40  # over the whole time
Sample = dict[str, float]


async def run(
    server: TritonServer,
    level: argparse.Namespace,
    given: argparse.Namespace,
    found: dict[str, Any],
    keep: Callable[[], None],
) -> None:
    """Load for `given.minutes`.

    Args:
        level: of the load, as `load.run` takes it; its `seconds` are set here.
        found: gets `samples` while it runs, then `load` and `growth`.
        keep: is called after each sample, so that a run that is cut short loses none.
    """
    level.seconds = 60 * given.minutes
    found["samples"] = []
    sampling = asyncio.create_task(_sample(server, given, level.seconds / SAMPLES, found["samples"], keep))
    try:
        found["load"] = await load.run(server.url, None, level)
    finally:
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling
    found["growth"] = growth(found["samples"])


def growth(samples: Sequence[Sample]) -> float:
    """How much larger memory is in the last quarter of the samples than in the second one, as a share.

    Of processes or of the GPU, whichever grew more. In the first quarter pools and caches fill.
    """
    quarter = len(samples) // 4
    if not quarter:
        raise ValueError("fewer than four samples")
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    kinds = [kind for kind in ("processes", "gpu") if kind in samples[0]]
    return max(sum(each[kind] for each in late) / sum(each[kind] for each in early) - 1 for kind in kinds)


async def _sample(
    server: TritonServer, given: argparse.Namespace, period: float, samples: list[Sample], keep: Callable[[], None]
) -> None:
    """Bytes of the server's processes, and of what is in use on the GPU, by all."""
    began = time.perf_counter()
    while True:
        await asyncio.sleep(period)
        sample = {"seconds": round(time.perf_counter() - began, 1)}
        sample["processes"] = sum((await asyncio.to_thread(lambda: shares(usage(server)))).values())
        if given.device == "cuda":
            free, total = torch.cuda.mem_get_info()
            sample["gpu"] = total - free
        samples.append(sample)
        await asyncio.to_thread(keep)
