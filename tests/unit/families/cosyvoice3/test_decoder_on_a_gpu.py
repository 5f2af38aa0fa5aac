"""CosyVoice3's decoder on a pretended GPU: the samples of a CPU, few waits, and no tensor on the wrong device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.families.cosyvoice_decoder import make_cosyvoice_decoder, some_reference, some_tokens
from tests.support.families.graph_safety import Recorder
from tests.support.pretend_gpu import MEMORY, pretend_gpu
from voice_clone.families.cosyvoice3.codec import load_decoder
from voice_clone.families.cosyvoice3.decoder_config import STEPS
from voice_clone.families.cosyvoice3.flow_streams import FlowStreams
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import DecoderSettings, Settings

pytestmark = pytest.mark.thorough

CLOSE = 0.01  # of the samples' RMS: streams share products, and the phase makes more of a pitch's error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cosyvoice_decoder(tmp_path_factory.mktemp("cosyvoice") / "checkpoint")


def load(folder: Path, device: str, precision: str = "fp32", **more: str) -> FlowStreams:
    values = {"CHECKPOINT_DIR": str(folder), "DEVICE": device, "PRECISION": precision, "CUDA_GRAPHS": "false", **more}
    given = Settings({}, {f"VOICE_CLONE_{name}": value for name, value in values.items()})
    stage = load_decoder(given)
    return stage.streams(DecoderSettings.of(given), stage.chunk_frames)


def spoken(streams: FlowStreams) -> list[NDArray[np.float32]]:
    """Two streams in common batches: one behind a reference of two blocks, one behind none."""
    numbers = [streams.open(some_reference(length))[0] for length in (60, 0)]
    heard = [streams.decode(numbers, [some_tokens(40, 1)[part], some_tokens(40, 2)[part]]) for part in PARTS]
    ends = [streams.flush(number) for number in numbers]
    return [np.concatenate([*(each[place] for each in heard), ends[place]]) for place in range(2)]


PARTS = (slice(0, 18), slice(18, 40))
REPLAYED = 2 + 1 + 1 + 1 + 1  # blocks: of the reference, then of the first stream, of both, and at each end


def test_samples_are_those_of_a_cpu(folder: Path) -> None:
    expected = spoken(load(folder, "cpu"))
    with pretend_gpu() as gpu:
        streams = load(folder, "cuda")
        assert streams.supports_ragged_batches and not streams.one_by_one
        got = spoken(streams)
    assert sum(gpu.launches.values()) > 1000
    assert gpu.waits <= 2 * (len(PARTS) + 1), "the host waits once for each stream's samples"
    for ours, right in zip(got, expected, strict=True):
        assert ours.dtype == np.float32 and abs(ours - right).max() < CLOSE * right.std()


def test_cuda_graphs_make_these_samples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replayed, the bits of the same steps that run as they are; ten replays for each block of both streams."""
    expected = spoken(load(folder, "cpu"))
    recorder = Recorder()
    heard = []
    for runner in (GraphRunner(recorder), GraphRunner()):
        monkeypatch.setattr(GraphRunner, "on", lambda device, runner=runner: runner)
        with pretend_gpu() as gpu:
            streams = load(folder, "cuda", CUDA_GRAPHS="true", PAGE_BYTES=str(16 * 2**21))
            heard.append(spoken(streams))
            assert gpu.waits <= 2 * (len(PARTS) + 1)
    assert sum(recorder.replays) == STEPS * REPLAYED
    for replayed, plain, right in zip(*heard, expected, strict=True):
        np.testing.assert_array_equal(replayed, plain)
        assert abs(replayed - right).max() < CLOSE * right.std()


def test_bf16_makes_a_like_sound(folder: Path) -> None:
    """Of the same loudness and length; its pages are half as large."""
    expected = spoken(load(folder, "cpu"))
    with pretend_gpu():
        wide, narrow = load(folder, "cuda"), load(folder, "cuda", "bf16")
        got = spoken(narrow)
        spoken(wide)
        assert narrow.pages.nbytes * 2 == wide.pages.nbytes > 0
    for ours, right in zip(got, expected, strict=True):
        assert len(ours) == len(right) and 0.8 < ours.std() / right.std() < 1.25


def test_pages_take_a_share_of_the_free_memory(folder: Path) -> None:
    with pretend_gpu():
        streams = load(folder, "cuda")
        streams.warm_up((28,), (1, 2), 60)
        assert streams.pages.max_bytes == MEMORY // 4 and streams.pages.nbytes == 0
