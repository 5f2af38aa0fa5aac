"""What is found wrong with a checkpoint folder before a server starts."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.support.families.checkpoint_faults import assert_refused_before_a_start, configured, cut, without
from tests.support.families.factories import CheckpointFactory
from tools.families.cards import check_checkpoint
from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint
from tools.families.recognition import FamilyError
from tools.triton_server import TritonServer
from voice_clone.errors import CheckpointError
from voice_clone.families.qwen3_tts.family import BASE

check = partial(check_checkpoint, BASE, "voice_clone.families.qwen3_tts")

CASES = {
    "no speakers": (configured("", tts_model_type="custom_voice"), "config.json: talker_config: spk_id is empty"),
    "no weights": (without("model.safetensors"), "model.safetensors: the file is missing"),
    "no codec": (without("speech_tokenizer/model.safetensors"), "speech_tokenizer/model.safetensors: the file is miss"),
    "no codec's configuration": (without("speech_tokenizer/config.json"), "speech_tokenizer/config.json: the file is"),
    "no tokenizer": (without("tokenizer.json", "merges.txt"), "merges.txt: the file is missing"),
    "half a download": (cut("model.safetensors", 100_000), "model.safetensors: not a whole safetensors file"),
    "hardly begun": (cut("model.safetensors", 5), "model.safetensors: not a whole safetensors file"),
    "empty": (cut("speech_tokenizer/model.safetensors", 0), "speech_tokenizer/model.safetensors: not a whole"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong(checkpoint_folder: CheckpointFactory, tmp_path: Path, case: str) -> None:
    folder = Path(shutil.copytree(checkpoint_folder("tiny", 0), tmp_path / "checkpoint"))
    check(folder)
    change, message = CASES[case]
    change(folder)
    assert_refused_before_a_start(check, folder, message)


@pytest.mark.thorough
def test_kinds_on_one_server_have_one_decoder(checkpoint_folder: CheckpointFactory, tmp_path: Path) -> None:
    base, custom, design = (checkpoint_folder(shape, 0) for shape in ("tiny", "tiny-custom", "tiny-design"))
    assert set(TritonServer([design, base, custom]).families) == {
        *("qwen3_tts", "qwen3_tts_custom_voice", "qwen3_tts_voice_design")
    }
    make_checkpoint("tiny-design", 1, tmp_path / "other")
    for first in (base, custom):
        with pytest.raises(FamilyError) as refused:
            TritonServer([first, tmp_path / "other"])
        assert "cannot be on one server: speech_tokenizer: the kinds of Qwen3-TTS share one decoder" in str(
            refused.value
        )


def test_shards(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    make_checkpoint("tiny", 0, folder, shards=3)
    check(folder)
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=f"{shard.name}: not a whole safetensors file"):
        check(folder)
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"{shard.name}: the file is missing"):
        check(folder)
