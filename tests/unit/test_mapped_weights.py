"""Weights of a checkpoint as arrays in a map of their file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from voice_clone.errors import CheckpointError
from voice_clone.mapped_weights import MappedWeights


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    kinds = {"single": torch.float32, "half": torch.float16, "brain": torch.bfloat16, "whole": torch.int32}
    return {name: (8 * torch.randn(3, 5, generator=random)).to(kind) for name, kind in kinds.items()}


@pytest.fixture
def folder(tensors: dict[str, Tensor], tmp_path: Path) -> Path:
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    return tmp_path


def test_tensors_are_those_of_the_file(folder: Path, tensors: dict[str, Tensor]) -> None:
    """bf16, which numpy lacks, as its bits."""
    weights = MappedWeights(folder, "model")
    np.testing.assert_array_equal(weights.read("single", (3, 5)), tensors["single"].numpy())
    np.testing.assert_array_equal(weights.read("half", (3, 5)), tensors["half"].numpy())
    np.testing.assert_array_equal(weights.read("brain", (3, 5)), tensors["brain"].view(torch.uint16).numpy())


def test_what_is_written_to_an_array_stays_in_memory(folder: Path, tensors: dict[str, Tensor]) -> None:
    weights = MappedWeights(folder, "model")
    weights.read("single", (3, 5))[:] = 0
    np.testing.assert_array_equal(MappedWeights(folder, "model").read("single", (3, 5)), tensors["single"].numpy())


def test_shards(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    places = {name: f"model-{number}.safetensors" for number, name in enumerate(tensors)}
    for name, file in places.items():
        save_file({name: tensors[name]}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    weights = MappedWeights(tmp_path, "model")
    for name in ("single", "half"):
        np.testing.assert_array_equal(weights.read(name, (3, 5)), tensors[name].numpy())
    with pytest.raises(CheckpointError, match=r"index\.json: tensor other is missing"):
        weights.read("other", (3, 5))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("other", (3, 5), "tensor other is missing"),
        ("single", (5, 3), r"single: shape \(3, 5\), expected \(5, 3\)"),
        ("whole", (3, 5), "whole: type I32, expected one of F32, F16, BF16"),
    ],
)
def test_a_wrong_tensor_is_reported(folder: Path, name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: {message}"):
        MappedWeights(folder, "model").read(name, shape)


def test_a_file_that_was_cut_short_is_reported(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        MappedWeights(folder, "model").read("single", (3, 5))


def test_a_file_that_is_missing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .*missing"):
        MappedWeights(tmp_path, "model").read("single", (3, 5))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data_offsets", [0, 59]),
        ("data_offsets", [-8, 52]),
        ("data_offsets", [0.0, 60.0]),
        ("data_offsets", None),
        ("shape", None),
        ("shape", [-3, -5]),
        ("dtype", ["F32"]),
        ("dtype", "F99"),
    ],
)
def test_a_header_that_does_not_fit_is_reported(folder: Path, key: str, value: Any) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["single"][key] = value
    changed = json.dumps(header).encode()
    file.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + size :])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        MappedWeights(folder, "model").read("single", (3, 5))
