"""The graphs of the encoders compute what their torch modules do, and suit Triton's oldest ONNX Runtime."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from tests.support.families.factories import CheckpointFactory
from tests.support.families.qwen3_encoders import TOLERANCE, Loaded, only_ties, speech
from voice_clone.onnx.export import OPSET
from voice_clone.onnx.session import ONNX_RUNTIME
from voice_clone_server.families.qwen3_tts.repository import CODEC_ENCODER, SPEAKER_ENCODER, export

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def loaded(checkpoint_folder: CheckpointFactory) -> Loaded:
    return Loaded.of(checkpoint_folder("tiny", 0))


@pytest.fixture(scope="module")
def onnx_folder(loaded: Loaded, checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    fingerprints = export(checkpoint_folder("tiny", 0), dict.fromkeys((SPEAKER_ENCODER, CODEC_ENCODER), folder))
    assert fingerprints == {SPEAKER_ENCODER: loaded.speaker_fingerprint, CODEC_ENCODER: loaded.codec_fingerprint}
    return folder


def run(folder: Path, name: str, clip: torch.Tensor) -> Any:
    session = onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), providers=["CPUExecutionProvider"])
    return session.run(None, {"waveform": clip.numpy()[None]})[0][0]


@pytest.mark.parametrize("seconds", [0.5, 1.23457, 3.0, 7.7, 12.0])
def test_every_graph_computes_what_torch_does(loaded: Loaded, onnx_folder: Path, seconds: float) -> None:
    clip = speech(seconds, 24000)
    np.testing.assert_array_equal(run(onnx_folder, CODEC_ENCODER, clip), loaded.codec_encoder.encode(clip))
    expected = loaded.speaker_encoder.embed(clip).numpy()
    error = np.abs(run(onnx_folder, SPEAKER_ENCODER, clip) - expected).max()
    assert error <= TOLERANCE * np.sqrt(np.mean(expected**2))


def test_only_codes_at_equal_distances_may_differ(loaded: Loaded) -> None:
    clip = speech(1.0, 24000)
    codes = loaded.codec_encoder.encode(clip)
    assert only_ties(loaded.codec_encoder, clip, codes, codes)
    for book in (0, 1, 15):
        other = codes.clone()
        other[7, book] = (other[7, book] + 1) % 64
        assert not only_ties(loaded.codec_encoder, clip, other, codes)


def test_the_graphs_fit_the_onnx_runtime_of_the_image(onnx_folder: Path) -> None:
    """1.19 takes opset 21 and IR version 10, and has no operators but the standard ones for every provider."""
    files = sorted(onnx_folder.glob("*.onnx"))
    assert files
    for file in files:
        model = onnx.load(file)
        assert [(each.domain, each.version) for each in model.opset_import] == [("", OPSET)]
        assert OPSET <= 20 and model.ir_version <= 10
        assert not {node.op_type for node in model.graph.node} & {"STFT", "DFT", "If", "Loop", "Scan"}
        shapes = {each.name: each.type.tensor_type.shape.dim for each in (*model.graph.input, *model.graph.output)}
        assert all(dims[0].dim_param == "batch" for dims in shapes.values()), file.name
        varying = {dim.dim_param for dims in shapes.values() for dim in dims} - {""}
        assert varying <= {"batch", "samples", "frames"}


def test_the_pinned_onnx_runtime_is_installed() -> None:
    pins = (Path(__file__).parents[4] / "constraints.txt").read_text()
    assert re.findall(r"^onnxruntime==(.+)$", pins, re.MULTILINE) == [ONNX_RUNTIME]
    assert onnxruntime.__version__ == ONNX_RUNTIME
