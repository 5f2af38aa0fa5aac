"""Checkpoints that are not those of the aligner, or not whole."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.support.families.checkpoint_faults import Fault, cut, without
from tools.make_checkpoint import main
from tools.qwen3_aligner import make_checkpoint
from voice_clone.errors import CheckpointError
from voice_clone.qwen3_aligner.engine import load
from voice_clone.settings import PrecisionSettings


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aligner") / "checkpoint"
    make_checkpoint("tiny", 0, folder)
    return folder


def configured(change: Callable[[dict[str, Any]], object]) -> Fault:
    def write(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    return write


def of_asr(config: dict[str, Any]) -> None:
    """Qwen3-ASR's: without the aligner's type, classes and timestamps."""
    for name in ("timestamp_token_id", "timestamp_segment_time"):
        del config[name]
    for name in ("model_type", "classify_num"):
        del config["thinker_config"][name]


def of_transformers_5(config: dict[str, Any]) -> None:
    config.update(config.pop("thinker_config"), model_type="qwen3_asr")


def audio(**values: Any) -> Fault:
    return configured(lambda config: config["thinker_config"]["audio_config"].update(values))


def text(**values: Any) -> Fault:
    return configured(lambda config: config["thinker_config"]["text_config"].update(values))


def other_shape(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["thinker.lm_head.weight"] = tensors["thinker.lm_head.weight"][:-1].contiguous()
    save_file(tensors, folder / "model.safetensors")


def lacking(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["thinker.audio_tower.layers.1.fc1.weight"]
    save_file(tensors, folder / "model.safetensors")


def other_ids(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(file.read_text().replace("<timestamp>", "<time>"))


FAULTS: dict[str, tuple[Fault, str]] = {
    "Qwen3-ASR": (configured(of_asr), "this is Qwen3-ASR.* take Qwen3-ForcedAligner-0.6B"),
    "-hf": (configured(of_transformers_5), "-hf; take Qwen3-ForcedAligner-0.6B itself"),
    "another model": (configured(lambda config: config.update(model_type="qwen3")), "'qwen3', not 'qwen3_asr'"),
    "no thinker": (configured(lambda config: config.pop("thinker_config")), "'thinker_config' is missing"),
    "another thinker": (
        configured(lambda config: config["thinker_config"].update(model_type="x")),
        "'x'; only 'qwen3_forced_aligner'",
    ),
    "no classes": (
        configured(lambda config: config["thinker_config"].pop("classify_num")),
        "'classify_num' is missing",
    ),
    "no layers": (audio(encoder_layers=0), "must be above 0"),
    "heads": (audio(encoder_attention_heads=7), "no multiple of encoder_attention_heads 7"),
    "bands": (audio(num_mel_bins=80), "num_mel_bins is 80; only 128"),
    "window": (audio(n_window_infer=850), "multiple of 100"),
    "widths": (audio(output_dim=32), "output_dim is 32, but hidden_size of text_config 64"),
    "activation": (text(hidden_act="gelu"), "only 'silu'"),
    "positions": (text(rope_scaling={"rope_type": "yarn"}), "only 'default'"),
    "sections": (text(rope_scaling={"rope_type": "default", "mrope_section": [1, 2]}), "its sum must be 8"),
    "vocabulary": (text(vocab_size=900), "but vocab_size is 900"),
    "config.json": (without("config.json"), "config.json: the file is missing"),
    "weights": (without("model.safetensors"), "model.safetensors: the file is missing"),
    "cut": (cut("model.safetensors", -10), "cut short"),
    "shape": (other_shape, r"thinker.lm_head.weight: shape \(399, 64\), expected \(400, 64\)"),
    "tensor": (lacking, "thinker.audio_tower.layers.1.fc1.weight is missing"),
    "tokenizer": (without("vocab.json", "merges.txt"), "vocab.json: the file is missing"),
    "ids": (other_ids, "<timestamp> must have the id"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_checkpoint_that_cannot_be_served_is_refused(whole: Path, tmp_path: Path, fault: str) -> None:
    change, right = FAULTS[fault]
    folder = tmp_path / "checkpoint"
    shutil.copytree(whole, folder)
    change(folder)
    with pytest.raises(CheckpointError, match=right) as refused:
        load(folder, PrecisionSettings(device="cpu", packed_bytes=0.0))
    assert not re.search(re.escape(str(tmp_path)), str(refused.value))


def test_the_command_makes_one(tmp_path: Path, whole: Path) -> None:
    main(["--family", "qwen3_aligner", "--shape", "tiny", str(tmp_path / "made")])
    for file in whole.iterdir():
        assert (tmp_path / "made" / file.name).read_bytes() == file.read_bytes()
