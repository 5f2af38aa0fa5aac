"""Checkpoints that cannot be served: the server refuses to start, with one line for each model that says why.

Each case is a model of its own, a copy of one of ours under the case's name, so one start tries them all. All that can
be wrong with a tensor is in tests/unit/families/qwen3_tts/test_checkpoint.py; here each stage meets one fault.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.support.families.factories import CheckpointFactory
from voice_clone_server.config_file import ConfigFile
from voice_clone_server.triton_server import MODELS, ROOT, ServerFailed, TritonServer

pytestmark = pytest.mark.thorough

Damage = Callable[[Path], None]


def tensor(file: str, name: str, shape: bool) -> Damage:
    """Leave a tensor out, or give it another shape."""

    def damage(checkpoint: Path) -> None:
        tensors = {key: value.clone() for key, value in load_file(checkpoint / file).items()}
        value = tensors.pop(name)
        if shape:
            tensors[name] = value[:1]
        save_file(tensors, checkpoint / file)

    return damage


def no_base_model(checkpoint: Path) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tts_model_type": "voice_design"}))


def truncated(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def missing(*files: str) -> Damage:
    def damage(checkpoint: Path) -> None:
        for file in files:
            (checkpoint / file).unlink(missing_ok=True)

    return damage


MODEL, CODEC = "model.safetensors", "speech_tokenizer/model.safetensors"
# By the case: the stage, what is done to its checkpoint, and words of the line that says so.
CASES: dict[str, tuple[str, Damage, tuple[str, ...]]] = {
    "talker_shape": (
        "talker",
        tensor(MODEL, "talker.codec_head.weight", shape=True),
        (MODEL, "talker.codec_head.weight", "shape"),
    ),
    "speaker_encoder_missing": (
        "voice_encoder",
        tensor(MODEL, "speaker_encoder.fc.weight", shape=False),
        (MODEL, "speaker_encoder.fc.weight", "missing"),
    ),
    "code2wav_missing": (
        "code2wav",
        tensor(CODEC, "decoder.pre_conv.conv.weight", shape=False),
        (CODEC, "decoder.pre_conv.conv.weight", "missing"),
    ),
    "codec_encoder_shape": (
        "voice_encoder",
        tensor(CODEC, "encoder.downsample.conv.weight", shape=True),
        (CODEC, "encoder.downsample.conv.weight", "shape"),
    ),
    "truncated_weights": ("talker", truncated, (MODEL,)),
    "no_base_model": ("voice_encoder", no_base_model, ("Base checkpoint", "qwen3_tts_voice_design")),
    "no_config": ("prompt", missing("config.json"), ("config.json",)),
    "no_generation_config": ("prompt", missing("generation_config.json"), ("generation_config.json",)),
    "no_codec_config": ("prompt", missing("speech_tokenizer/config.json"), ("speech_tokenizer/config.json",)),
    "no_tokenizer": ("prompt", missing("tokenizer.json", "vocab.json"), ("vocab.json",)),
    "no_checkpoint": ("prompt", shutil.rmtree, ("VOICE_CLONE_CHECKPOINT_DIR",)),
}


@pytest.fixture(scope="module")
def log(checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines with which a server refuses all the cases."""
    folder = tmp_path_factory.mktemp("startup")
    for case, (stage, damage, _) in CASES.items():
        checkpoint = Path(shutil.copytree(checkpoint_folder("tiny", 0), folder / "checkpoints" / case))
        damage(checkpoint)
        model = Path(shutil.copytree(MODELS / f"qwen3_tts_{stage}", folder / "models" / case))
        config = ConfigFile.read(model)
        config.message.name = case
        config.set("checkpoint_dir", str(checkpoint))
        config.write(model)
    server = TritonServer(models=folder / "models", log=folder / "log", environment={"VOICE_CLONE_CHECKPOINT_DIR": ""})
    try:
        with pytest.raises(ServerFailed, match="exited with status"):
            server.start()
    finally:
        server.stop()
    return (folder / "log").read_text().splitlines()


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_that_cannot_be_served(log: list[str], case: str) -> None:
    reasons = [line for line in log if f"failed to load '{case}'" in line]
    assert reasons, "\n".join(log)
    for words in CASES[case][2]:
        assert words in reasons[0]
    assert str(ROOT) not in reasons[0] and f"checkpoints/{case}" not in reasons[0]
