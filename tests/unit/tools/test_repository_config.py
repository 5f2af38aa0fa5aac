"""How a built repository gives an encoder's network to Triton's own backends."""

from __future__ import annotations

from typing import Any

import pytest

from voice_clone_server.families.operating import EncoderGraph
from voice_clone_server.repository_config import Network

ENCODER = EncoderGraph("codec_encoder", 24000, ("codec_codes", "TYPE_INT32", (-1, 16)))


def network(kind: str, provider: str) -> Any:
    return Network("qwen3_tts", "qwen3_tts_voice_encoder", ENCODER).config(kind, provider, 1).message


@pytest.mark.parametrize("provider", ["auto", "cpu", "cuda"])
def test_cuda_searches_convolutions_by_a_heuristic(provider: str) -> None:
    """1 in the backend's own numbers. Its default searches exhaustively for every new length of a clip."""
    config = network("onnx", provider)
    assert config.parameters["cudnn_conv_algo_search"].string_value == "1"
    [accelerator] = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "cuda" and dict(accelerator.parameters) == {"use_tf32": "0"}


def test_tensorrt_in_onnx_runtime_and_by_itself() -> None:
    config = network("onnx", "tensorrt")
    [accelerator] = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt" and dict(accelerator.parameters) == {"precision_mode": "FP32"}
    plan = network("tensorrt", "auto")
    assert not plan.parameters and not plan.optimization.execution_accelerators.gpu_execution_accelerator


def test_threads_of_a_network_are_those_of_the_setting() -> None:
    config = Network("qwen3_tts", "qwen3_tts_voice_encoder", ENCODER).config("onnx", "cpu", 1, threads=3).message
    assert config.parameters["intra_op_thread_count"].string_value == "3"
    assert "intra_op_thread_count" not in network("onnx", "cpu").parameters
