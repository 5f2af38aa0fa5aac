"""audiovae.pth of a checkpoint, a pickle, to audiovae.safetensors, once. It runs nothing that it finds.

The names and shapes of all tensors must be exactly those of an AudioVAE of the sizes in config.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from voice_clone.errors import CheckpointError
from voice_clone.families.voxcpm2.audio_vae_checkpoint import BOUNDARIES, AudioVAECheckpoint
from voice_clone.families.voxcpm2.audio_vae_config import AUDIO_VAE
from voice_clone_server.families.pickles import check_shapes, load_pickle, save_tensors, tensors_by_name

SOURCE = f"{AUDIO_VAE}.pth"
_WRAPPER = "state_dict"


def convert(checkpoint: Path) -> list[Path]:
    """Write audiovae.safetensors beside audiovae.pth; an earlier one is replaced.

    Raises:
        CheckpointError: the file is missing or refused, or the new one cannot be written; one line says why.
    """
    opened = AudioVAECheckpoint(checkpoint)
    loaded = load_pickle(checkpoint, SOURCE)
    if isinstance(loaded, dict) and isinstance(loaded.get(_WRAPPER), dict):
        loaded = loaded[_WRAPPER]
    tensors = tensors_by_name(loaded, SOURCE, lambda name: None if name == BOUNDARIES else name)
    _check_boundaries(loaded.get(BOUNDARIES), opened.config.sr_bin_boundaries)
    check_shapes(tensors, opened.expected, SOURCE, "no AudioVAE of this family")
    return [save_tensors(checkpoint / f"{AUDIO_VAE}.safetensors", tensors, checkpoint / SOURCE)]


def _check_boundaries(found: Any, expected: tuple[int, ...]) -> None:
    """They choose the decoder's scales and biases, and official code takes those of the pickle."""
    plain = type(found) is torch.Tensor and found.dtype == torch.int32 and found.device.type == "cpu"
    if (
        not plain
        or found.is_sparse
        or found.is_nested
        or not torch.equal(found, torch.tensor(expected, dtype=torch.int32))
    ):
        raise CheckpointError(f"{SOURCE}: refused, {BOUNDARIES!r} must be {list(expected)}, as in config.json")
