"""The preset voices of a checkpoint, a pickle each, to voices.safetensors, once. It runs nothing that it finds.

torch's unpickler for weights alone knows tensors and plain containers; whatever else a pickle asks for, it refuses.
"""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from voice_clone.errors import CheckpointError
from voice_clone.families.voxtral.config import VOICE_FOLDER, VOICES, load_config

MOST_ROWS = 1 << 12
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def convert(checkpoint: Path) -> Path:
    """Write voices.safetensors into the folder of the checkpoint; an earlier one is replaced.

    Raises:
        CheckpointError: a file is missing or refused, or the new one cannot be written; one line says why.
    """
    config = load_config(checkpoint)
    if not config.presets:
        raise CheckpointError("params.json names no voices; there is nothing to convert")
    target = checkpoint / f"{VOICES}.safetensors"
    partial = target.with_suffix(".partial")
    tables = {name: _read(checkpoint, name, config.dim) for name in config.presets}
    try:
        save_file(tables, partial, metadata={"format": "pt"})
        partial.chmod((checkpoint / "params.json").stat().st_mode & 0o777)  # not private to whoever converts
        partial.replace(target)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{target.name}: cannot be written ({type(error).__name__})") from None
    finally:
        partial.unlink(missing_ok=True)
    return target


def _read(folder: Path, name: str, dim: int) -> Tensor:
    """The table of a voice, [positions, dim]."""
    if Path(name).name != name or not name.isprintable():
        raise CheckpointError(f"params.json: the voice {name!r} is no name of a file")
    file = f"{VOICE_FOLDER}/{name}.pt"
    if not (folder / file).is_file():
        raise CheckpointError(f"{file}: the file is missing from the checkpoint folder")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the one line says enough
            table = torch.load(folder / file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(f"{file}: refused, it holds more than tensors; nothing of it was run") from None
    except Exception:  # of any kind: torch unpickles what a damaged or forged file says until it makes no sense
        raise CheckpointError(f"{file}: not a whole file of a tensor; it may have been cut short") from None
    if type(table) is not Tensor or table.dtype not in _FLOATS or table.layout is not torch.strided:
        raise CheckpointError(f"{file}: refused, it holds no plain tensor of floating-point numbers")
    if table.ndim != 2 or not 0 < len(table) <= MOST_ROWS or table.shape[1] != dim:
        raise CheckpointError(f"{file}: refused, its shape is {tuple(table.shape)}; expected [positions, {dim}]")
    if not bool(table.isfinite().all()):
        raise CheckpointError(f"{file}: refused, it holds NaN or infinity")
    return table.contiguous().clone()
