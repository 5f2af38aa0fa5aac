"""A server whose encoders and code2wav run on ONNX Runtime passes the tests that it passes with torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from voice_clone_client import Client

from tests.conftest import CheckpointFactory
from tests.server.test_code2wav_on_server import (
    decoder,
    direct,
    test_a_beat_changes_nothing,
    test_chunks_sent_ahead_come_back_in_order,
    test_eight_streams_at_once_are_each_exact,
    test_eight_voices_speak_at_once,
    test_strangers_do_not_harm_a_stream,
    test_the_state_after_a_reference_is_computed_once,
)
from tests.server.test_speech import (
    test_a_ready_embedding,
    test_a_registered_voice,
    test_an_inline_clip_speaks_as_the_registered_voice,
    test_streams_at_once_do_not_mix,
    test_the_first_chunk_is_one_frame_and_the_frame_limit_is_exact,
)
from tests.server.test_voices import test_a_voice_is_extracted_once, test_upload_get_list_delete
from tools.families.qwen3_tts.onnx_comparison import TOLERANCE, Loaded, speech
from tools.triton_server import ServerFailed, TritonServer
from voice_clone.onnx.session import ONNX_RUNTIME

__all__ = [  # run here too, against the server of this file
    "decoder",
    "direct",
    "test_a_beat_changes_nothing",
    "test_a_ready_embedding",
    "test_a_registered_voice",
    "test_a_voice_is_extracted_once",
    "test_an_inline_clip_speaks_as_the_registered_voice",
    "test_chunks_sent_ahead_come_back_in_order",
    "test_eight_streams_at_once_are_each_exact",
    "test_eight_voices_speak_at_once",
    "test_strangers_do_not_harm_a_stream",
    "test_streams_at_once_do_not_mix",
    "test_the_first_chunk_is_one_frame_and_the_frame_limit_is_exact",
    "test_the_state_after_a_reference_is_computed_once",
    "test_upload_get_list_delete",
]

STAGES = ("speaker_encoder", "codec_encoder", "code2wav_step")


def environment(onnx_folder: Path) -> dict[str, str]:
    return {"VOICE_CLONE_ENGINE": "onnx", "VOICE_CLONE_ONNX_DIR": str(onnx_folder)}


@pytest.fixture(scope="module")
def server(
    checkpoint_folder: CheckpointFactory, onnx_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("onnx-server")
    log = folder / "log"
    given = environment(onnx_folder)
    with TritonServer(checkpoint_folder("tiny", 0), folder / "voices", log=log, environment=given) as server:
        yield server
        assert server.ready(), "a test made the server unready"
        server.kill()
    for stage in STAGES:
        assert f"{stage}.onnx on ONNX Runtime {ONNX_RUNTIME}: CPUExecutionProvider, threads: 1" in log.read_text()


@pytest.fixture(scope="module")
def voice(server: TritonServer, reference_clip: bytes, reference_text: str) -> str:
    with Client(server.url) as client:
        client.upload("Harbour", reference_clip, reference_text=reference_text, wait=True)
    return "Harbour"


@pytest.fixture(scope="module")
def loaded(checkpoint_folder: CheckpointFactory) -> Loaded:
    return Loaded.of(checkpoint_folder("tiny", 0))


def encode(server: TritonServer, model: str, clip: torch.Tensor) -> triton.InferResult:
    waveform, rate = (
        triton.InferInput("waveform", list(clip.shape), "FP32"),
        triton.InferInput("sample_rate", [1], "INT32"),
    )
    waveform.set_data_from_numpy(clip.numpy())
    rate.set_data_from_numpy(np.array([24000], np.int32))
    with triton.InferenceServerClient(server.url) as client:
        return client.infer(model, [waveform, rate])


@pytest.mark.parametrize("seconds", [1.0, 2.71828, 5.0, 8.3, 12.0])
def test_the_encoders_give_what_torch_gives(server: TritonServer, loaded: Loaded, seconds: float) -> None:
    clip = speech(seconds, 24000)
    codes = encode(server, "qwen3_tts_codec_encoder", clip)
    np.testing.assert_array_equal(codes.as_numpy("codec_codes"), loaded.codec_encoder.encode(clip))
    assert codes.as_numpy("fingerprint")[0].decode() == loaded.codec_fingerprint
    embedding = encode(server, "qwen3_tts_speaker_encoder", clip)
    expected = loaded.speaker_encoder.embed(clip).numpy()
    error = np.abs(embedding.as_numpy("speaker_embedding") - expected).max()
    assert error <= TOLERANCE * np.sqrt(np.mean(expected**2))
    assert embedding.as_numpy("fingerprint")[0].decode() == loaded.speaker_fingerprint


def test_graphs_of_another_checkpoint_are_refused(
    checkpoint_folder: CheckpointFactory, onnx_folder: Path, tmp_path: Path
) -> None:
    models = ("speaker_encoder", "codec_encoder", "code2wav")
    options = ["--model-control-mode=explicit", *(f"--load-model=qwen3_tts_{model}" for model in models)]
    server = TritonServer(
        checkpoint_folder("tiny", 1),
        tmp_path / "voices",
        log=tmp_path / "log",
        options=options,
        environment=environment(onnx_folder),
    )
    try:
        with pytest.raises(ServerFailed) as refused:
            server.start()
        for stage in STAGES:
            assert f"{stage}.onnx: made from another checkpoint" in str(refused.value)
        assert str(refused.value).count("make it with: tools/export_onnx --checkpoint DIR") == 3
    finally:
        server.stop()
