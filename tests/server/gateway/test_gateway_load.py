"""Many streams at once through one gateway."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx2
import numpy as np
import pytest
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from tests.support.servers.server_metrics import metric
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.share("servers")

SEEDS = 8


def body(voice: str, seed: int) -> dict[str, Any]:
    return {
        "input": f"Sentence number {seed}.",
        "voice": voice,
        "seed": seed,
        "max_new_tokens": 6 + seed,
        "response_format": "pcm",
    }


async def one(http: httpx2.AsyncClient, voice: str, number: int, leave: bool) -> tuple[int, bytes]:
    """The seed and the audio of one stream; none if it is left after its first bytes. It obeys Retry-After."""
    seed = number % SEEDS
    while True:
        async with http.stream("POST", "/v1/audio/speech", json=body(voice, seed)) as answer:
            if answer.status_code == 503:
                await asyncio.sleep(float(answer.headers["retry-after"]) * random.uniform(0.5, 1.5))
                continue
            assert answer.status_code == 200, await answer.aread()
            assert json.loads(answer.headers["x-speech-info"])["seed"] == seed
            pieces = []
            async for piece in answer.aiter_raw():
                pieces.append(piece)
                if leave:
                    return seed, b""
            return seed, b"".join(pieces)


@pytest.mark.parametrize(
    "streams", [6, pytest.param(24, marks=pytest.mark.thorough), pytest.param(200, marks=pytest.mark.long)]
)
def test_streams_are_neither_mixed_up_nor_lost(
    server: TritonServer, client: Client, gateway: Gateway, voice: str, streams: int
) -> None:
    expected = {}
    for seed in range(SEEDS):
        asked = body(voice, seed)
        samples, _ = client.speak(asked["input"], voice=voice, seed=seed, max_frames=asked["max_new_tokens"]).read()
        expected[seed] = np.rint(samples.clip(-1, 1) * 32767).astype(int)

    async def run() -> list[tuple[int, bytes]]:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=gateway.url, timeout=300, limits=limits, trust_env=False) as http:
            return await asyncio.gather(*(one(http, voice, n, leave=n % 5 == 4) for n in range(streams)))

    for seed, pcm in asyncio.run(run()):
        if pcm:
            samples = np.frombuffer(pcm, "<i2").astype(int)
            assert len(samples) == len(expected[seed])
            # Speeches in one batch differ in rounding, and then rarely in a code: compare what a mix-up would change.
            assert np.abs(samples - expected[seed])[: 2 * 1920].max() <= 4
    until(lambda: metric(server, "talker_live_streams") == 0 and gateway.metric("live_speeches") == 0)
