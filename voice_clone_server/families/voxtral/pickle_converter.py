"""The preset voices of a checkpoint, a pickle each, to voices.safetensors, once. It runs nothing that it finds."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from voice_clone.errors import CheckpointError
from voice_clone.families.voxtral.config import VOICE_FOLDER, VOICES, load_config
from voice_clone_server.families.pickles import is_plain, load_pickle, save_tensors

MOST_ROWS = 1 << 12


def convert(checkpoint: Path) -> list[Path]:
    """Write voices.safetensors into the folder of the checkpoint; an earlier one is replaced.

    Raises:
        CheckpointError: a file is missing or refused, or the new one cannot be written; one line says why.
    """
    config = load_config(checkpoint)
    if not config.presets:
        raise CheckpointError("params.json names no voices; there is nothing to convert")
    tables = {name: _read(checkpoint, name, config.dim) for name in config.presets}
    return [save_tensors(checkpoint / f"{VOICES}.safetensors", tables, checkpoint / "params.json")]


def _read(folder: Path, name: str, dim: int) -> Tensor:
    """The table of a voice, [positions, dim]."""
    if Path(name).name != name or not name.isprintable():
        raise CheckpointError(f"params.json: the voice {name!r} is no name of a file")
    file = f"{VOICE_FOLDER}/{name}.pt"
    table = load_pickle(folder, file, "of a tensor")
    if not is_plain(table):
        raise CheckpointError(f"{file}: refused, it holds no plain tensor of floating-point numbers")
    assert isinstance(table, Tensor)  # a plain one is
    if table.ndim != 2 or not 0 < len(table) <= MOST_ROWS or table.shape[1] != dim:
        raise CheckpointError(f"{file}: refused, its shape is {tuple(table.shape)}; expected [positions, {dim}]")
    if not bool(table.isfinite().all()):
        raise CheckpointError(f"{file}: refused, it holds NaN or infinity")
    return table.clone()
