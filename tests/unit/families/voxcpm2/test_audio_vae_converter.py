"""audiovae.pth to audiovae.safetensors: what is accepted, and that a hostile pickle is refused and runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.families.checkpoint_faults import Trap
from tests.support.families.voxcpm2_audio import make_audio_vae_folder
from voice_clone.errors import CheckpointError
from voice_clone_server.families.voxcpm2.pickle_converter import convert

pytestmark = pytest.mark.thorough

ALPHA, BOUNDARIES = "decoder.model.2.block.0.alpha", "decoder.sr_bin_boundaries"
Tensors = dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_audio_vae_folder(tmp_path_factory.mktemp("voxcpm2") / "checkpoint").folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """The same checkpoint, not converted yet."""
    for file in ("config.json", "audiovae.pth"):
        (tmp_path / file).write_bytes((whole / file).read_bytes())
    return tmp_path


def tensors(folder: Path) -> Tensors:
    found: Tensors = torch.load(folder / "audiovae.pth", weights_only=True)["state_dict"]
    return found


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        convert(folder)
    assert not (folder / "audiovae.safetensors").exists() and not [*folder.glob("*.partial")]
    return str(raised.value)


def test_a_released_file_is_converted(folder: Path, whole: Path) -> None:
    assert convert(folder) == [folder / "audiovae.safetensors"]
    made, given = load_file(folder / "audiovae.safetensors"), tensors(whole)
    assert made.keys() == given.keys() - {BOUNDARIES}
    assert all(torch.equal(made[name], given[name]) for name in made)
    assert any("fc_logvar" in name for name in made)


def test_tensors_without_a_wrapper_are_known(folder: Path) -> None:
    torch.save(tensors(folder), folder / "audiovae.pth")
    convert(folder)


def test_a_pickle_that_runs_a_program_is_refused(folder: Path) -> None:
    traps = [folder / f"trap-{n}" for n in range(2)]
    torch.save({"state_dict": {**tensors(folder), "evil": Trap(traps[0])}}, folder / "audiovae.pth")
    assert "holds more than tensors" in refused(folder)
    torch.save(Trap(traps[1]), folder / "audiovae.pth")
    assert "holds more than tensors" in refused(folder)
    assert not any(trap.exists() for trap in traps)


CHANGES: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "unknown name": (lambda known: known | {"extra.weight": torch.ones(2)}, "'extra.weight', which no AudioVAE"),
    "missing tensor": (lambda known: {n: t for n, t in known.items() if n != ALPHA}, "alpha is missing"),
    "wrong shape": (lambda known: known | {ALPHA: torch.ones(1, 3, 1)}, r"shape \(1, 3, 1\), expected \(1, 256, 1\)"),
    "whole numbers": (lambda known: known | {ALPHA: torch.ones(1, 256, 1, dtype=torch.int64)}, "no plain tensor"),
    "huge by a stride of 0": (lambda known: known | {ALPHA: torch.ones(1).expand(1, 256, 1)}, "no plain tensor"),
    "other boundaries": (
        lambda known: known | {BOUNDARIES: torch.tensor([20000, 30000, 50000], dtype=torch.int32)},
        r"must be \[20000, 30000, 40000\], as in config.json",
    ),
    "no boundaries": (lambda known: {n: t for n, t in known.items() if n != BOUNDARIES}, "as in config.json"),
    "a list of boundaries": (lambda known: known | {BOUNDARIES: [20000, 30000, 40000]}, "as in config.json"),
    "boundaries without memory": (
        lambda known: known | {BOUNDARIES: torch.ones(3, dtype=torch.int32, device="meta")},
        "as in config.json",
    ),
    "a list": (lambda known: list(known.values()), "'state_dict' is no plain tensor"),
    "nested twice": (lambda known: {"state_dict": known}, "no plain tensor"),
    "nothing": (lambda known: {}, "as in config.json"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_no_audio_vae_is_refused(folder: Path, change: str) -> None:
    make, message = CHANGES[change]
    torch.save({"state_dict": make(tensors(folder))}, folder / "audiovae.pth")
    assert re.search(message, refused(folder))


@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_a_file_that_was_cut_short_is_refused(folder: Path, part: float) -> None:
    content = (folder / "audiovae.pth").read_bytes()
    (folder / "audiovae.pth").write_bytes(content[: int(part * len(content))])
    refused(folder)


def test_a_forged_pickle_is_refused(folder: Path) -> None:
    """Bytes of the pickle at random: whatever the unpickler meets, it is a `CheckpointError`."""
    content, random = (folder / "audiovae.pth").read_bytes(), np.random.default_rng(0)
    for _ in range(20):
        forged = bytearray(content)
        for place in random.integers(0, 4000, 40):
            forged[place] = random.integers(256)
        (folder / "audiovae.pth").write_bytes(forged)
        refused(folder)


def test_an_earlier_file_stays_when_a_new_one_is_refused(folder: Path) -> None:
    convert(folder)
    before = (folder / "audiovae.safetensors").read_bytes()
    torch.save([1], folder / "audiovae.pth")
    with pytest.raises(CheckpointError):
        convert(folder)
    assert (folder / "audiovae.safetensors").read_bytes() == before
