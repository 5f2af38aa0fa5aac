"""What is found wrong with a checkpoint folder of OmniVoice before a server starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.families.checkpoint_faults import Fault, configured, cut, without
from tools.families.cards import check_checkpoint
from tools.families.omnivoice.checkpoint_maker import make_checkpoint, make_endless
from voice_clone.errors import CheckpointError
from voice_clone.families.omnivoice.config import load_config
from voice_clone.families.omnivoice.family import CARD

check = partial(check_checkpoint, CARD, "voice_clone.families.omnivoice")

pytestmark = pytest.mark.thorough


def renamed(old: str, new: str) -> Fault:
    def write(folder: Path) -> None:
        file = folder / "tokenizer.json"
        file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")

    return write


CASES: dict[str, tuple[Fault, str]] = {
    "no configuration": (without("config.json"), "config.json: the file is missing"),
    "another model": (configured("", model_type="other"), "model_type is 'other'; only 'omnivoice' is supported"),
    "other codes": (configured("", audio_vocab_size=2049), "audio_vocab_size is 2049; only 1025 is supported"),
    "other layers": (configured("llm_config", model_type="llama"), "llm_config.model_type is 'llama'"),
    "other positions": (
        configured("llm_config", rope_parameters={"rope_type": "yarn", "rope_theta": 1e6}),
        "rope_type must be 'default'",
    ),
    "no theta": (configured("llm_config", rope_parameters=None), "'rope_theta' is missing"),
    "heads": (configured("llm_config", num_key_value_heads=3), "4 heads and 3 key-value heads"),
    "no tokenizer": (without("tokenizer.json"), "tokenizer.json: the file is missing"),
    "half a tokenizer": (cut("tokenizer.json", -10), "tokenizer.json: not a tokenizer that can be read"),
    "no control token": (renamed("<|denoise|>", "<|noise|>"), "<|denoise|> is no token of it"),
    "few tokens": (configured("llm_config", vocab_size=900), "config.json allows ids below 900"),
    "no weights": (without("model.safetensors"), "model.safetensors: the file is missing"),
    "half the weights": (cut("model.safetensors", -10), "model.safetensors: not a whole safetensors file"),
    "no codec": (without("audio_tokenizer/config.json"), "audio_tokenizer/config.json: the file is missing"),
    "half a codec": (cut("audio_tokenizer/model.safetensors", -10), "not a whole safetensors file"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("omnivoice") / "checkpoint"
    make_checkpoint("tiny", 0, folder)
    return folder


def test_a_whole_checkpoint_is_fine(made: Path, tmp_path: Path) -> None:
    check(made)
    check(make_endless(made, tmp_path / "endless"))
    with pytest.raises(FileExistsError):
        make_checkpoint("tiny", 0, made)


def test_older_files_have_theta_elsewhere(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "checkpoint"))
    configured("llm_config", rope_parameters=None, rope_theta=5000)(folder)
    assert load_config(folder).rope_theta == 5000.0


@pytest.mark.parametrize(("change", "what"), CASES.values(), ids=CASES)
def test_what_is_wrong_is_said(made: Path, tmp_path: Path, change: Callable[[Path], object], what: str) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "checkpoint"))
    change(folder)
    with pytest.raises(CheckpointError) as found:
        check(folder)
    assert what in str(found.value)


def test_a_checkpoint_depends_on_its_arguments_alone(made: Path, tmp_path: Path) -> None:
    make_checkpoint("tiny", 0, tmp_path / "again")
    make_checkpoint("tiny", 1, tmp_path / "other")
    file = "model.safetensors"
    assert (tmp_path / "again" / file).read_bytes() == (made / file).read_bytes()
    assert (tmp_path / "other" / file).read_bytes() != (made / file).read_bytes()
