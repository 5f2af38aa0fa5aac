"""What is found wrong with a checkpoint folder before a server starts, and when an encoder loads it."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.support.families.checkpoint_faults import Fault, cut, without
from tests.support.families.cosyvoice3 import make_cosyvoice3
from tools.families.cards import check_checkpoint
from voice_clone.errors import CheckpointError
from voice_clone.families.cosyvoice3.family import CARD

check = partial(check_checkpoint, CARD, "voice_clone.families.cosyvoice3")

pytestmark = pytest.mark.thorough

TOKENIZER, SPEAKER = "speech_tokenizer_v3.onnx", "campplus.onnx"


def holding(name: str, content: bytes) -> Fault:
    return lambda folder: (folder / name).write_bytes(content)


CASES = {
    "no mark": (without("cosyvoice3.yaml"), "cosyvoice3.yaml: the file is missing"),
    "no configuration": (
        without("CosyVoice-BlankEN/config.json"),
        "CosyVoice-BlankEN/config.json: the file is missing",
    ),
    "no vocabulary": (without("CosyVoice-BlankEN/vocab.json"), "CosyVoice-BlankEN/vocab.json: the file is missing"),
    "no merges": (without("CosyVoice-BlankEN/merges.txt"), "CosyVoice-BlankEN/merges.txt: the file is missing"),
    "not converted": (
        without("flow.safetensors"),
        "flow.pt is not converted yet; run once: tools/convert_pickles CHECK",
    ),
    "no vocoder": (without("hift.safetensors", "hift.pt"), "hift.safetensors: the file is missing"),
    "half a talker": (cut("llm.safetensors", 100_000), "llm.safetensors: not a whole safetensors file"),
    "no tokenizer": (without(TOKENIZER), f"{TOKENIZER}: the file is missing"),
    "half a tokenizer": (cut(TOKENIZER, 1_000_000), f"{TOKENIZER}: not a whole ONNX file; it may have been cut short"),
    "a byte is missing": (cut(SPEAKER, -1), f"{SPEAKER}: not a whole ONNX file"),
    "empty": (holding(SPEAKER, b""), f"{SPEAKER}: not a whole ONNX file"),
    "no graph in it": (holding(SPEAKER, b"\x08\x08\x12\x02ab"), f"{SPEAKER}: not a whole ONNX file"),
    "an endless number": (holding(SPEAKER, b"\xff" * 40), f"{SPEAKER}: not a whole ONNX file"),
    "a huge length": (holding(SPEAKER, b"\x3a" + b"\xff" * 9 + b"\x01"), f"{SPEAKER}: not a whole ONNX file"),
    "a pointer of Git LFS": (
        holding(TOKENIZER, b"version https://git-lfs.github.com/spec/v1\n"),
        "not a whole ONNX file",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cosyvoice3(tmp_path_factory.mktemp("cosyvoice3") / "checkpoint")


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong(whole: Path, tmp_path: Path, case: str) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for file in whole.iterdir():
        if file.is_dir():
            shutil.copytree(file, folder / file.name)
        elif file.suffix == ".onnx" or file.name == "llm.safetensors":
            shutil.copy(file, folder)
        else:
            (folder / file.name).symlink_to(file)
    check(folder)
    change, message = CASES[case]
    change(folder)
    with pytest.raises(CheckpointError, match=message):
        check(folder)
