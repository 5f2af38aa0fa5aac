"""What is found wrong with a checkpoint folder of Fish Speech before a server starts."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.support.families.checkpoint_faults import Fault, assert_refused_before_a_start, configured, cut, without
from tests.support.families.fish import make_fish
from tools.families.cards import check_checkpoint
from voice_clone.families.fish_speech.family import CARD

check = partial(check_checkpoint, CARD, "voice_clone.families.fish_speech")

CASES: dict[str, tuple[Fault, str]] = {
    "biases": (
        configured("text_config", attention_qkv_bias=True),
        "config.json: text_config.attention_qkv_bias is True; only False is supported",
    ),
    "a head of its own": (
        configured("text_config", tie_word_embeddings=False),
        "config.json: text_config.tie_word_embeddings is False; only True is supported",
    ),
    "other tokens": (configured("", eos_token_id=7), "tokenizer.json: <|im_end|> does not have the id 7 of config"),
    "no tokenizer": (without("tokenizer.json"), "tokenizer.json: the file is missing from the checkpoint folder"),
    "no weights": (without("model.safetensors"), "model.safetensors: the file is missing from the checkpoint folder"),
    "half of the weights": (cut("model.safetensors", 100_000), "model.safetensors: not a whole safetensors file"),
    "not converted": (without("codec.safetensors"), "codec.pth is not converted yet; run once: tools/convert_pickles"),
    "no codec": (without("codec.safetensors", "codec.pth"), "codec.safetensors: the file is missing"),
    "half a codec": (cut("codec.safetensors", 100_000), "codec.safetensors: not a whole safetensors file"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fish(tmp_path_factory.mktemp("fish") / "checkpoint")


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong(whole: Path, tmp_path: Path, case: str) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "checkpoint"))
    check(folder)
    change, message = CASES[case]
    change(folder)
    assert_refused_before_a_start(check, folder, message)
