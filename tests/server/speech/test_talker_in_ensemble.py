"""Streams that end before their time, through the whole ensemble on the real server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from voice_clone_client import Client

from tests.support.official.deployment_files import metrics_in_manifests
from tests.support.servers.server_metrics import metric, series
from tests.support.servers.talker_calls import Call
from tests.support.waiting import until
from tools.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

FRAMES = 3000
LONG = "Every evening the boats came home, and the harbour filled with voices. " * 8


@pytest.fixture(scope="module")
def server(endless_server: TritonServer) -> TritonServer:
    return endless_server


@pytest.fixture(scope="module")
def voice(server: TritonServer, reference_clip: bytes) -> str:
    """Name of a registered voice."""
    with Client(server.url) as client:
        client.upload("Quay", reference_clip, wait=True)
    return "Quay"


def speech(voice: str) -> dict[str, Any]:
    """Inputs of a speech that takes far longer than any test waits for."""
    return {"text": LONG, "voice": voice, "seed": np.array([4], np.uint64), "max_frames": np.array([FRAMES], np.int32)}


def nothing_is_left(server: TritonServer) -> bool:
    return metric(server, "talker_live_streams") == metric(server, "talker_waiting_streams") == 0


def test_what_the_autoscaler_watches_is_there(server: TritonServer) -> None:
    watched = {name for name in metrics_in_manifests() if not name.startswith("speaker_cache_")}
    assert watched and {name for name, _, _ in series(server)} >= watched


def test_deadline(server: TritonServer, client: Client, voice: str) -> None:
    call = Call(server, speech(voice), model="qwen3_tts", deadline_ms=1000)
    error = None
    while error is None:
        result = call.next()
        if isinstance(result, str):
            error = result
        else:
            assert not result.as_numpy("final")[0]
    assert "deadline_exceeded: " in error
    call.close()
    until(lambda: nothing_is_left(server))
    assert list(client.speak("Good morning.", voice=voice, max_frames=3, seed=0))[-1].final


@pytest.mark.parametrize("chunks", [0, 1, 4])
def test_a_caller_that_leaves(server: TritonServer, client: Client, voice: str, chunks: int) -> None:
    cancelled = metric(server, "talker_streams_total", reason="cancelled")
    frames = metric(server, "talker_frames_total")
    call = Call(server, speech(voice), model="qwen3_tts")
    until(lambda: metric(server, "talker_live_streams") == 1)
    for _ in range(chunks):
        assert not call.next().as_numpy("final")[0]
    call.leave()
    until(
        lambda: metric(server, "talker_streams_total", reason="cancelled") == cancelled + 1
    )  # the last of a stream's series
    assert nothing_is_left(server)
    assert metric(server, "talker_frames_total") - frames < FRAMES
    assert list(client.speak("Good morning.", voice=voice, max_frames=3, seed=0))[-1].final
