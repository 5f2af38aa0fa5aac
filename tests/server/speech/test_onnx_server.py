"""A server whose encoders run on ONNX Runtime. More tests of it have the mark `on_every_engine`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton

from tests.support.families.factories import CheckpointFactory
from tests.support.servers.engines import ONNX_GRAPHS
from tools.families.qwen3_tts.onnx_export import TOLERANCE, Loaded, speech
from tools.triton_server import ServerFailed, TritonServer

pytestmark = pytest.mark.share("servers")


@pytest.fixture(scope="module")
def loaded(checkpoint_folder: CheckpointFactory) -> Loaded:
    return Loaded.of(checkpoint_folder("tiny", 0))


def encode(server: TritonServer, clip: torch.Tensor) -> triton.InferResult:
    waveform, rate = (
        triton.InferInput("waveform", list(clip.shape), "FP32"),
        triton.InferInput("sample_rate", [1], "INT32"),
    )
    waveform.set_data_from_numpy(clip.numpy())
    rate.set_data_from_numpy(np.array([24000], np.int32))
    with triton.InferenceServerClient(server.url) as client:
        return client.infer("qwen3_tts_voice_encoder", [waveform, rate])


@pytest.mark.parametrize("seconds", [1.0, 2.71828, 5.0, 8.3, 12.0])
def test_the_encoders_give_what_torch_gives(onnx_server: TritonServer, loaded: Loaded, seconds: float) -> None:
    clip = speech(seconds, 24000)
    made = encode(onnx_server, clip)
    np.testing.assert_array_equal(made.as_numpy("codec_codes"), loaded.codec_encoder.encode(clip))
    assert made.as_numpy("codec_encoder_fingerprint")[0].decode() == loaded.codec_fingerprint
    expected = loaded.speaker_encoder.embed(clip).numpy()
    error = np.abs(made.as_numpy("speaker_embedding") - expected).max()
    assert error <= TOLERANCE * np.sqrt(np.mean(expected**2))
    assert made.as_numpy("speaker_encoder_fingerprint")[0].decode() == loaded.speaker_fingerprint


@pytest.mark.thorough  # a server of its own
def test_graphs_of_another_checkpoint_are_refused(
    checkpoint_folder: CheckpointFactory, onnx_environment: dict[str, str], tmp_path: Path
) -> None:
    options = ["--model-control-mode=explicit", "--load-model=qwen3_tts_voice_encoder"]
    server = TritonServer(
        checkpoint_folder("tiny", 1),
        tmp_path / "voices",
        log=tmp_path / "log",
        options=options,
        environment=onnx_environment,
    )
    try:
        with pytest.raises(ServerFailed) as refused:
            server.start()
        assert f"{ONNX_GRAPHS[0]}.onnx: made from another checkpoint" in str(refused.value)
        assert "make it with: tools/export_onnx --checkpoint DIR" in str(refused.value)
    finally:
        server.stop()
