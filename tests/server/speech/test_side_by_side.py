"""Speeches beside others in the default mode are those that they are alone: other by rounding, never by a code."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_client import Client

from tests.support.same_audio import ROUNDING
from tests.support.servers.running import running
from tests.support.servers.server_metrics import metric
from tools.triton_server import TritonServer

SPEECHES, BESIDE = 1000, 16
STORY = "boats and bread, letters of the harbour, a quiet lamp: every evening by the winter sea, every morning a river"


@pytest.fixture(scope="module")
def server(endless_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """With room for all, none of which ends by itself."""
    folder = tmp_path_factory.mktemp("side-by-side")
    with running(endless_checkpoint, folder, VOICE_CLONE_MAX_STREAMS=str(BESIDE)) as server:
        yield server


def wishes() -> list[dict[str, Any]]:
    """Sampled and greedy, in context and not, of different lengths: neighbours come and go."""
    rng = random.Random(0)
    return [
        {
            "text": " ".join(rng.choices(STORY.split(), k=rng.randrange(2, 12))),
            "seed": rng.getrandbits(64),
            "max_frames": rng.randrange(3, 40),
            "x_vector_only": rng.random() < 0.5,
            "do_sample": rng.random() < 0.8,
            "temperature": rng.choice([0.6, 0.9, 1.2]),
        }
        for _ in range(SPEECHES)
    ]


@pytest.mark.long
def test_sixteen_at_once(server: TritonServer, reference_clip: bytes, reference_text: str) -> None:
    with Client(server.url) as client:
        client.upload("Harbour", reference_clip, reference_text=reference_text, wait=True)

        def speak(wish: dict[str, Any]) -> NDArray[np.float32]:
            return client.speak(voice="Harbour", **wish).read()[0]

        wanted = wishes()
        alone = [speak(wish) for wish in wanted]
        with ThreadPoolExecutor(BESIDE) as pool:
            spoken = [pool.submit(speak, wish) for wish in wanted]
            live = []
            while not spoken[-1].done():
                live.append(metric(server, "talker_live_streams"))
                time.sleep(0.1)
            together = [each.result() for each in spoken]
    assert max(live) > BESIDE / 2, "too few at once"
    errors = []
    for one, beside in zip(alone, together, strict=True):
        assert one.shape == beside.shape
        errors.append(float(np.abs(one - beside).max() / np.sqrt((one**2).mean())))
    others = [number for number, error in enumerate(errors) if error > ROUNDING]
    assert not others, f"{len(others)} of {SPEECHES} have another code, such as {wanted[others[0]]}"
