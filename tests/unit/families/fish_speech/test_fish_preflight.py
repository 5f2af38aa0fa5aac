"""What is found wrong with a checkpoint folder of Fish Speech before a server starts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.families.fish import make_fish
from tools.families.recognition import FamilyError
from tools.triton_server import ROOT, TritonServer
from voice_clone.errors import CheckpointError
from voice_clone.families.fish_speech.preflight import check


def without(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def configured(part: str, **values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (config[part] if part else config).update(values)
        (folder / "config.json").write_text(json.dumps(config))

    return change


CASES: dict[str, tuple[Callable[[Path], None], str]] = {
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
    with pytest.raises(CheckpointError) as caught:
        check(folder)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    with pytest.raises(FamilyError) as refused:  # by every tool that starts a server
        TritonServer(folder)
    assert str(refused.value) == f"{folder}: {caught.value}"


def test_it_needs_no_torch() -> None:
    code = "import sys, voice_clone.families.fish_speech.preflight; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
