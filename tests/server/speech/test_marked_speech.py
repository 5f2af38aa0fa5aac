"""A server that marks its speech: the mark is found, nothing else changes, and no chunk waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_client import Chunk, Client

from tests.server.conftest import running
from tests.support.families.factories import CheckpointFactory
from tests.support.same_audio import is_same_audio
from tests.support.servers.server_metrics import metric
from tests.support.waiting import until
from tools.triton_server import TritonServer
from voice_clone.marking.detection import PerthDetector
from voice_clone.marking.marker import PerthMarker

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

TEXT = "Every evening the boats came home."
FRAMES = 60


@pytest.fixture(scope="module")
def marking_server(
    checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("marking-server")
    with running(checkpoint_folder("tiny", 0), folder, VOICE_CLONE_MARK="required") as server:
        yield server


def speak(server: TritonServer, clip: bytes, seed: int = 0, frames: int = FRAMES) -> list[Chunk]:
    with Client(server.url) as client:
        return list(client.speak(TEXT, reference_audio=clip, x_vector_only=True, seed=seed, max_frames=frames))


def samples(chunks: list[Chunk]) -> NDArray[np.float32]:
    return np.concatenate([chunk.samples for chunk in chunks])


def info(chunks: list[Chunk]) -> dict[str, Any]:
    return dict(chunks[-1].info or {})


def test_a_marked_stream_is_the_other_ones_speech_marked(
    marking_server: TritonServer, torch_server: TritonServer, reference_clip: bytes
) -> None:
    plain, marked = speak(torch_server, reference_clip), speak(marking_server, reference_clip)
    rate = plain[0].sample_rate
    marker = PerthMarker(rate)
    assert is_same_audio(samples(marked), marker.mark([marker.open()], [samples(plain)])[0])
    assert len(marked[0].samples) == len(plain[0].samples), "the first chunk comes with the first frames"
    assert len(marked) > 3
    assert info(marked)["mark"] == "marked" and "mark" not in info(plain)
    detector = PerthDetector()
    found, other = detector.detect(samples(marked), rate), detector.detect(samples(plain), rate)
    assert found.marked and found.confidence > 0.9, found
    assert not other.marked and other.confidence < 0.1, other


def test_marked_streams_are_counted(marking_server: TritonServer, reference_clip: bytes) -> None:
    before = metric(marking_server, "code2wav_marks_total", result="marked")
    speak(marking_server, reference_clip, seed=1, frames=3)
    until(lambda: metric(marking_server, "code2wav_marks_total", result="marked") == before + 1)
    assert metric(marking_server, "code2wav_marks_total", result="failed") == 0
