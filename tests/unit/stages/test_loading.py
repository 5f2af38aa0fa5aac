"""How talkers of all families are filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from voice_clone.checkpoint import CheckpointFiles
from voice_clone.errors import Unsupported
from voice_clone.settings import CPU_PRECISIONS, TalkerSettings
from voice_clone.stages.loading import TalkerPart, empty, load_talker_network

PARTS = (
    TalkerPart("slow.", "text.", ("layers.",), in_file=("table.weight",)),
    TalkerPart("fast.", "audio.", ("layers.",), in_file_on_cpu=("table.weight",)),
)


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))
        self.table = nn.Linear(4, 6, bias=False)
        self.norm = nn.LayerNorm(4)


class Talker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slow, self.fast = Part(), Part()


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = {name: tuple(tensor.shape) for name, tensor in Part().state_dict().items()}
    return {
        f"{prefix}{name}": torch.randn(shape, generator=random).bfloat16()
        for prefix in ("text.", "audio.")
        for name, shape in shapes.items()
    }


@pytest.fixture
def checkpoint(tensors: dict[str, Tensor], tmp_path: Path) -> CheckpointFiles:
    save_file(tensors, tmp_path / "model.safetensors")
    return CheckpointFiles(tmp_path)


def load(checkpoint: CheckpointFiles, precision: str, use_native_code: Any = None) -> Talker:
    return load_talker_network(
        TalkerSettings(checkpoint_dir=checkpoint.folder, device="cpu", precision=precision, packed_bytes=0.0),
        empty(Talker),
        checkpoint,
        "model",
        PARTS,
        family="made_up",
        sizes=None,
        use_native_code=use_native_code,
    )


def test_a_talker_in_torch_is_whole(checkpoint: CheckpointFiles, tensors: dict[str, Tensor]) -> None:
    state = load(checkpoint, "fp32").state_dict()
    for name, loaded in state.items():
        wanted = tensors[name.replace("slow.", "text.").replace("fast.", "audio.")]
        assert torch.equal(loaded.float(), wanted.float()), name
        assert loaded.dtype == (torch.bfloat16 if "table" in name else torch.float32)  # tables stay as in the file


def test_native_code_fills_the_layers_by_their_names(checkpoint: CheckpointFiles, tensors: dict[str, Tensor]) -> None:
    seen = []

    def use_native_code(talker: Talker, precision: str, fill: Any, packed: object) -> None:
        assert precision == "int8"
        for place, prefix in (("slow", "text"), ("fast", "audio")):
            part = talker.get_submodule(place)
            assert not part.norm.weight.is_meta
            for index, layer in enumerate(part.layers):
                assert layer.weight.is_meta
                fill(layer, f"{place}.layers.{index}")
                assert torch.equal(layer.weight, tensors[f"{prefix}.layers.{index}.weight"])
                seen.append(f"{place}.{index}")

    load(checkpoint, "int8", use_native_code)
    assert seen == ["slow.0", "slow.1", "fast.0", "fast.1"]


@pytest.mark.parametrize("precision", CPU_PRECISIONS)
def test_a_family_without_native_code_has_no_small_precisions(checkpoint: CheckpointFiles, precision: str) -> None:
    with pytest.raises(Unsupported, match=f"precision {precision}: this model computes in fp32 or bf16 alone"):
        load(checkpoint, precision)
