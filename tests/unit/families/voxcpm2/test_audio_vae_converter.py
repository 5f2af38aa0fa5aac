"""audiovae.pth to audiovae.safetensors. What all converters refuse is tested with Fish Speech's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
