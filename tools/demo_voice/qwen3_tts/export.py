"""Writes the trained networks as a checkpoint in the official on-disk format."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tools.families.qwen3_tts.checkpoint_weights import codec_shapes, model_shapes
from tools.families.weight_files import Shapes
from voice_clone.families.qwen3_tts.config import CODEC_FOLDER, load_config
from voice_clone_server.new_folder import new_folder

WEIGHTS = "model.safetensors"


def export(
    configuration: Path, talker: Mapping[str, Tensor], decoder: Mapping[str, Tensor], encoder: Mapping[str, Tensor],
    folder: Path,
) -> None:  # fmt: skip
    """Write a checkpoint; `folder`, which may exist, is replaced when the new one is whole.

    Args:
        configuration: a folder with all files but the weights.
        talker: the tensors of a `TalkerModel`; those that a checkpoint does not have are left out.
        decoder, encoder: the tensors of the codec's networks.
    """
    config = load_config(configuration)
    with new_folder(folder) as made:
        shutil.copytree(configuration, made, dirs_exist_ok=True)
        model = {name: talker[name].to(torch.bfloat16) for name in model_shapes(config)}
        codec = {f"decoder.{name}": tensor for name, tensor in decoder.items()}
        codec |= {f"encoder.{name}": tensor for name, tensor in encoder.items()}
        _save(model, model_shapes(config), made / WEIGHTS)
        _save(_with_unused(codec, codec_shapes(config)), codec_shapes(config), made / CODEC_FOLDER / WEIGHTS)


def _with_unused(tensors: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
    """Add the tensors that the official classes hold but never use."""
    filled = {name: torch.ones(shape) if name.endswith("initialized") else torch.zeros(shape)
              for name, shape in shapes.items()}  # fmt: skip
    return filled | dict(tensors)


def _save(tensors: Mapping[str, Tensor], shapes: Shapes, path: Path) -> None:
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == shapes
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(whole, path, metadata={"format": "pt"})
