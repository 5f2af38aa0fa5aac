"""The options of an ONNX Runtime provider: the same codes as in fp32, and no search for each new length of a clip."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

from voice_clone.errors import CheckpointError
from voice_clone.onnx import session
from voice_clone.onnx.session import PROVIDERS, Runtime, Session

FOLDER = Path("/graphs")
CUDA = {"use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"}


@pytest.mark.parametrize(
    ("provider", "options"),
    [
        ("CPUExecutionProvider", {}),
        ("CUDAExecutionProvider", CUDA),
        (
            "TensorrtExecutionProvider",
            {"trt_engine_cache_enable": True, "trt_engine_cache_path": str(FOLDER / "tensorrt")},
        ),
    ],
)
def test_options_of_a_provider(provider: str, options: dict[str, Any]) -> None:
    assert session._options(provider, FOLDER) == options


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_they_reach_onnx_runtime(provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without a GPU: ONNX Runtime is asked to open the graph, with options for each provider."""
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["x"])], "graph", [value], [value])
    (tmp_path / "tiny.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    opened: list[list[tuple[str, dict[str, Any]]]] = []

    class Opened(Exception):
        """The session was asked for."""

    def open_session(file: str, options: Any, providers: list[tuple[str, dict[str, Any]]]) -> None:
        opened.append(providers)
        raise Opened

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: PROVIDERS[provider])
    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with pytest.raises(CheckpointError):
        Session(Runtime(tmp_path, provider, 1), "tiny", "any")
    [given] = opened
    assert [name for name, _ in given] == PROVIDERS[provider] and dict(given)["CUDAExecutionProvider"] == CUDA
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == ("0" if provider == "tensorrt" else "1")
