"""tools/convert_pickles: what it accepts, and that a hostile pickle is refused with one line and runs nothing."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.families.checkpoint_faults import Trap
from tests.support.families.fish import make_fish
from voice_clone.errors import CheckpointError
from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone_server.convert_pickles import main

pytestmark = pytest.mark.thorough

ALPHA = "decoder.model.1.block.0.alpha"
BIASES = ("encoder.block.0.conv.bias", "encoder.block.1.block.0.block.1.conv.bias")  # of 8 channels each
Tensors = dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fish(tmp_path_factory.mktemp("fish") / "checkpoint")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """The same checkpoint, its codec not converted yet."""
    made = tmp_path / "checkpoint"
    made.mkdir()
    for file in whole.iterdir():
        if not file.name.startswith("codec"):
            (made / file.name).symlink_to(file)
    (made / "codec.pth").write_bytes((whole / "codec.pth").read_bytes())
    return made


def tensors(folder: Path) -> Tensors:
    found: Tensors = torch.load(folder / "codec.pth", weights_only=True)
    return found


def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which the tool refuses it."""
    assert main([str(folder)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Traceback" not in said and str(folder) not in said
    assert not (folder / "codec.safetensors").exists() and not [*folder.glob("*.partial")]
    return said


def test_a_released_codec_is_converted(folder: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "codec.safetensors")
    made, expected = load_file(folder / "codec.safetensors"), load_file(whole / "codec.safetensors")
    assert made.keys() == expected.keys() and all(torch.equal(made[name], expected[name]) for name in made)
    assert not any(re.search("mask|freqs|parametrizations", name) for name in made)
    assert Checkpoint(folder).codec == Checkpoint(whole).codec


@pytest.mark.parametrize("wrapper", ["generator", "state_dict"])
def test_a_wrapped_codec_is_unwrapped(folder: Path, wrapper: str) -> None:
    torch.save({wrapper: tensors(folder)}, folder / "codec.pth")
    assert main([str(folder)]) == 0


def test_the_other_spelling_of_weight_norm_is_known(folder: Path) -> None:
    spelled = {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): tensor
        for name, tensor in tensors(folder).items()
    }
    torch.save(spelled, folder / "codec.pth")
    assert main([str(folder)]) == 0


def test_the_server_opens_no_pickle_and_says_what_to_run(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="convert-pickles"):
        _ = Checkpoint(folder).codec


def test_a_pickle_that_runs_a_program_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traps = [folder / f"trap-{n}" for n in range(3)]
    known = tensors(folder)
    torch.save({**known, "evil": Trap(traps[0])}, folder / "codec.pth")
    assert "holds more than tensors" in refused(folder, capsys)
    torch.save(Trap(traps[1]), folder / "codec.pth")
    assert "holds more than tensors" in refused(folder, capsys)
    (folder / "codec.pth").write_bytes(pickle.dumps({"evil": Trap(traps[2])}))  # without torch's archive
    refused(folder, capsys)
    assert not any(trap.exists() for trap in traps)


CHANGES: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "unknown name": (lambda known: known | {"extra.weight": torch.ones(2)}, "'extra.weight'"),
    "missing tensor": (lambda known: {n: t for n, t in known.items() if n != ALPHA}, "alpha is missing"),
    "wrong shape": (lambda known: known | {ALPHA: torch.ones(1, 3, 1)}, r"shape \(1, 3, 1\), expected \(1, 48, 1\)"),
    "whole numbers": (lambda known: known | {ALPHA: torch.ones(1, 48, 1, dtype=torch.int64)}, "no plain tensor"),
    "a number": (lambda known: known | {ALPHA: 3.0}, "no plain tensor"),
    "a text": (lambda known: known | {ALPHA: "rm -rf"}, "no plain tensor"),
    "a name that is none": (lambda known: known | {7: torch.ones(1)}, "a name is no text"),
    "huge by a stride of 0": (lambda known: known | {ALPHA: torch.ones(1).expand(1, 48, 1)}, "no plain tensor"),
    "a tensor without memory": (lambda known: known | {ALPHA: torch.ones(1, 48, 1, device="meta")}, "no plain tensor"),
    "numbers to be negated": (lambda known: known | {ALPHA: torch._neg_view(torch.ones(1, 48, 1))}, "no plain tensor"),
    "the same tensor twice": (lambda known: known | dict.fromkeys(BIASES, torch.ones(8)), "memory of another"),
    "parts of one tensor": (
        lambda known: known | {name: known[BIASES[0]].expand(8)[:8] for name in BIASES},
        "memory of another",
    ),
    "half a head": (lambda known: known | {"encoder.block.0.conv.bias": torch.ones(2)}, "expected a multiple of 4"),
    "a list": (lambda known: list(known.values()), "instead of tensors by name"),
    "nested twice": (lambda known: {"generator": {"generator": known}}, "no plain tensor"),
    "nothing": (lambda known: {}, "missing"),
    "sizes that no memory holds": (
        lambda known: known | {"encoder.block.0.conv.bias": torch.ones(1 << 17)},
        "encoder.block.0.conv.bias is missing or has a wrong shape",
    ),
    "twice": (lambda known: known | {"decoder.model.0.conv.weight_g": torch.ones(48, 1, 1)}, "is there twice"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_no_codec_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], change: str) -> None:
    make, message = CHANGES[change]
    torch.save(make(tensors(folder)), folder / "codec.pth")
    assert re.search(message, refused(folder, capsys))


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
def test_a_file_that_was_cut_short_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], part: float) -> None:
    content = (folder / "codec.pth").read_bytes()
    (folder / "codec.pth").write_bytes(content[: int(part * len(content))])
    refused(folder, capsys)


def test_a_forged_pickle_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes of the pickle at random, 100 times: whatever the unpickler meets, it is one line."""
    known, path, random = tensors(folder), folder / "codec.pth", np.random.default_rng(0)
    torch.save({name: known[name] for name in list(known)[:6]}, path)
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    start = content.index(pickled)
    for _ in range(100):
        forged = bytearray(content)
        for place in random.integers(start, start + len(pickled), int(random.integers(1, 6))):
            forged[place] = random.integers(256)
        path.write_bytes(forged)
        refused(folder, capsys)


def test_a_file_that_cannot_be_written_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "codec.safetensors").mkdir()
    assert main([str(folder)]) == 1
    assert (
        capsys.readouterr().err == "tools/convert_pickles: codec.safetensors: cannot be written (IsADirectoryError)\n"
    )


def test_an_earlier_file_stays_when_a_new_one_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder)]) == 0
    before = (folder / "codec.safetensors").read_bytes()
    torch.save([1], folder / "codec.pth")
    assert main([str(folder)]) == 1
    assert (folder / "codec.safetensors").read_bytes() == before


def test_a_checkpoint_without_a_codec_to_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_tts", "tts_model_type": "base"}')
    assert main([str(tmp_path)]) == 1 and "have no pickles to convert" in capsys.readouterr().err
