"""Checkpoints that cannot be served: the server refuses to start, with one line that says why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.conftest import CheckpointFactory
from tools.triton_server import ROOT, ServerFailed, TritonServer


def refused(checkpoint: Path, tmp_path: Path, *models: str) -> str:
    """The log line with which the server refuses `checkpoint`."""
    options = ["--model-control-mode=explicit", *(f"--load-model={model}" for model in models)]
    log = tmp_path / "log"
    server = TritonServer(checkpoint, tmp_path / "voices", log=log, options=options)
    try:
        with pytest.raises(ServerFailed, match="exited with status"):
            server.start()
    finally:
        server.stop()
    reasons = [line for line in log.read_text().splitlines() if "failed to load" in line]
    assert reasons, log.read_text()
    assert str(ROOT) not in reasons[0] and str(checkpoint) not in reasons[0]
    return reasons[0]


@pytest.fixture
def checkpoint(checkpoint_folder: CheckpointFactory, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return Path(shutil.copytree(checkpoint_folder("tiny", 0), tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    ("file", "tensor", "model"),
    [
        ("model.safetensors", "talker.codec_head.weight", "qwen3_tts_talker"),
        ("model.safetensors", "speaker_encoder.fc.weight", "qwen3_tts_speaker_encoder"),
        ("speech_tokenizer/model.safetensors", "decoder.pre_conv.conv.weight", "qwen3_tts_code2wav"),
        ("speech_tokenizer/model.safetensors", "encoder.downsample.conv.weight", "qwen3_tts_codec_encoder"),
    ],
)
@pytest.mark.parametrize("damage", ["missing", "shape"])
def test_a_tensor_is_wrong(checkpoint: Path, tmp_path: Path, file: str, tensor: str, model: str, damage: str) -> None:
    tensors = load_file(checkpoint / file)
    value = tensors.pop(tensor)
    if damage == "shape":
        tensors[tensor] = value[:1]
    save_file(tensors, checkpoint / file)
    line = refused(checkpoint, tmp_path, model)
    assert file in line and tensor in line
    assert "missing" in line if damage == "missing" else "shape" in line


def test_not_a_base_model(checkpoint: Path, tmp_path: Path) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tts_model_type": "custom_voice"}))
    line = refused(checkpoint, tmp_path, "qwen3_tts_talker")
    assert "config.json" in line and "base" in line


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "speech_tokenizer/config.json"])
def test_a_file_is_missing(checkpoint: Path, tmp_path: Path, file: str) -> None:
    (checkpoint / file).unlink()
    assert file in refused(checkpoint, tmp_path, "qwen3_tts_prompt")


def test_no_tokenizer(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "vocab.json"):
        (checkpoint / name).unlink(missing_ok=True)
    assert "vocab.json" in refused(checkpoint, tmp_path, "qwen3_tts_prompt")


def test_truncated_weights(checkpoint: Path, tmp_path: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    assert "model.safetensors" in refused(checkpoint, tmp_path, "qwen3_tts_talker")


def test_no_checkpoint(tmp_path: Path) -> None:
    line = refused(tmp_path / "nowhere", tmp_path, "qwen3_tts_talker")
    assert "VOICE_CLONE_CHECKPOINT_DIR" in line
