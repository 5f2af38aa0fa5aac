"""The options of an ONNX Runtime provider: the same codes as in fp32, and no search for each new length of a clip."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from voice_clone.errors import CheckpointError, InvalidArgument, Unsupported
from voice_clone.onnx import session
from voice_clone.onnx.export import OPSET
from voice_clone.onnx.session import ONNX_RUNTIME, PROVIDERS, ReleasedGraph, Runtime
from voice_clone.settings import EncoderSettings, Settings

FOLDER = Path("/graphs")
CUDA = {"use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"}


def write_graph(folder: Path) -> Path:
    """tiny.onnx: y = x."""
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "graph", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10)
    file = folder / "tiny.onnx"
    file.write_bytes(model.SerializeToString())
    return file


def opened_graph(folder: Path, provider: str = "cpu") -> ReleasedGraph:
    return ReleasedGraph(Runtime(folder, provider, 1), "tiny", [("tensor(float)", 1)])


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
    assert session.provider_options(provider, FOLDER) == options


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_they_reach_onnx_runtime(provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without a GPU: ONNX Runtime is asked to open the graph, with options for each provider."""
    write_graph(tmp_path)
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
        opened_graph(tmp_path, provider)
    [given] = opened
    assert [name for name, _ in given] == PROVIDERS[provider] and dict(given)["CUDAExecutionProvider"] == CUDA
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == ("0" if provider == "tensorrt" else "1")


def test_a_graph_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tiny\.onnx: .*missing"):
        opened_graph(tmp_path)
    file = write_graph(tmp_path)
    assert opened_graph(tmp_path).run(np.ones(1, np.float32)) == [1]
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(CheckpointError, match=r"tiny\.onnx: ONNX Runtime cannot open the graph"):
        opened_graph(tmp_path)


def test_no_other_provider_than_the_one_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    assert not has_cuda, "this test is for the CPU build"
    write_graph(tmp_path)
    for provider in ("cuda", "tensorrt"):
        with pytest.raises(Unsupported, match=f"onnx_provider is {provider}, .* does not have; it has cpu"):
            opened_graph(tmp_path, provider)
    # Built in, but it cannot start: ONNX Runtime goes on with the CPU, and says so in a warning alone.
    everything = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: everything)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    for provider in ("cuda", "tensorrt"):
        with (
            pytest.raises(Unsupported, match=f"onnx_provider is {provider}, which wants a GPU .*; it has cpu"),
            pytest.warns(UserWarning, match="not in available provider"),
        ):
            opened_graph(tmp_path, provider)


@pytest.mark.parametrize("version", ["1.2.3", "1.18.1", "1.29.0", "2.19.0"])
def test_another_onnx_runtime_is_named(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", version)
    with pytest.raises(Unsupported, match=f"onnxruntime is {version}; it must be 1.19 to 1.28: .*=={ONNX_RUNTIME}"):
        opened_graph(tmp_path)


def test_an_unknown_provider_is_refused() -> None:
    environ = {"VOICE_CLONE_ONNX_PROVIDER": "rocm", "VOICE_CLONE_CHECKPOINT_DIR": "c"}
    with pytest.raises(InvalidArgument, match="auto, cpu, cuda, tensorrt"):
        EncoderSettings.of(Settings({}, environ))
