"""The preset voices' pickles to safetensors: what is accepted, and that a hostile pickle runs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.families.checkpoint_faults import Trap
from tests.support.families.voxtral import make_voxtral
from tools.families.voxtral.checkpoint_config import VOICES
from voice_clone.errors import CheckpointError
from voice_clone_server.families.voxtral.pickle_converter import convert

pytestmark = pytest.mark.thorough


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = make_voxtral(tmp_path / "checkpoint")
    (made / "voices.safetensors").unlink()
    return made


def test_all_tables_become_one_file(folder: Path) -> None:
    voices = load_file(*convert(folder))
    assert set(voices) == set(VOICES)
    for name, table in voices.items():
        expected = torch.load(folder / "voice_embedding" / f"{name}.pt", weights_only=True)
        assert table.dtype == torch.bfloat16 and torch.equal(table, expected)


def test_a_hostile_pickle_is_refused_and_runs_nothing(folder: Path, tmp_path: Path) -> None:
    torch.save(Trap(tmp_path / "sprung"), folder / "voice_embedding" / "ar_male.pt")
    with pytest.raises(CheckpointError, match=r"ar_male.pt: refused"):
        convert(folder)
    assert not (tmp_path / "sprung").exists() and not (folder / "voices.safetensors").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": torch.zeros(3, 64)}, "no plain tensor"),
        (torch.zeros(3, 64, dtype=torch.int64), "no plain tensor"),
        (torch.zeros(3, 63), r"its shape is \(3, 63\); expected \[positions, 64\]"),
        (torch.zeros(0, 64), "its shape is"),
        (torch.full((3, 64), torch.nan), "NaN or infinity"),
        (None, "not a whole file of a tensor"),
    ],
)
def test_what_is_refused(folder: Path, content: Any, message: str) -> None:
    file = folder / "voice_embedding" / "casual_female.pt"
    torch.save(content, file)
    if content is None:
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=message):
        convert(folder)


def test_a_missing_voice_is_named(folder: Path) -> None:
    (folder / "voice_embedding" / "it_male.pt").unlink()
    with pytest.raises(CheckpointError, match=r"voice_embedding/it_male.pt: .*missing"):
        convert(folder)
