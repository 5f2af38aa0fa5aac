"""Pickles of a checkpoint to safetensors, once; nothing that they hold is run. For the converters of all families.

torch's unpickler for weights alone knows tensors and plain containers; whatever else a pickle asks for, it refuses. It
would load a dictionary of other things, so names and types are checked here, and shapes against what a family expects.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from voice_clone.checkpoint_folder import check_file
from voice_clone.errors import CheckpointError
from voice_clone_server.steps import step

Shapes = dict[str, tuple[int, ...]]

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LONGEST_NAME = 200  # characters


def load_pickle(folder: Path, file: str, what: str = "of weights") -> Any:
    """What a pickle holds: tensors, memory-mapped where they can be, in plain containers.

    Args:
        file: relative to `folder`.
        what: the file should hold, for the error.

    Raises:
        CheckpointError: the file is missing, is not whole, or holds anything else.
    """
    check_file(folder, file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the one line says enough
            mapped = is_zipfile(folder / file)  # torch's older format cannot be mapped
            with step(f"reading {file}"):
                return torch.load(folder / file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError:
        raise CheckpointError(f"{file}: refused, it holds more than tensors; nothing of it was run") from None
    except Exception:  # of any kind: torch unpickles what a damaged or forged file says until it makes no sense
        raise CheckpointError(f"{file}: not a whole file {what}; it may have been cut short") from None


def tensors_by_name(loaded: Any, file: str, rename: Callable[[str], str | None]) -> dict[str, Tensor]:
    """The tensors of a dictionary under our names.

    Args:
        loaded: as `load_pickle` returns it.
        file: for the error.
        rename: from the file's name to ours; None: the entry is dropped, whatever it is.

    Raises:
        CheckpointError: something is no plain tensor, two share memory, or a name is no text or there twice.
    """
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{file}: refused, it holds {type(loaded).__name__} instead of tensors by name")
    tensors: dict[str, Tensor] = {}
    memories: set[int] = set()
    for official, tensor in loaded.items():
        if not isinstance(official, str) or len(official) > LONGEST_NAME or not official.isprintable():
            raise CheckpointError(f"{file}: refused, a name is no text")
        name = rename(official)
        if name is None:
            continue
        if not is_plain(tensor):
            raise CheckpointError(f"{file}: refused, {official!r} is no plain tensor of floating-point numbers")
        if name in tensors:
            raise CheckpointError(f"{file}: refused, {name!r} is there twice")
        memory = tensor.untyped_storage().data_ptr()
        if memory in memories:
            raise CheckpointError(f"{file}: refused, {name!r} lies in the memory of another tensor")
        memories.add(memory)
        tensors[name] = tensor
    return tensors


def is_plain(tensor: Any) -> bool:
    """Whether it is a whole tensor of floating-point numbers in memory."""
    if type(tensor) is not Tensor or tensor.dtype not in FLOATS or tensor.is_nested:
        return False
    in_memory = tensor.layout is torch.strided and tensor.device.type == "cpu"
    return in_memory and tensor.is_contiguous() and not tensor.is_neg()


def check_shapes(tensors: Mapping[str, Tensor], expected: Shapes, file: str, what: str) -> None:
    """Check that names and shapes are exactly those expected.

    Args:
        what: has such tensors, for the error: `no codec of this family`.

    Raises:
        CheckpointError: a tensor is missing, of another shape, or strange.
    """
    if strange := sorted(set(tensors) - set(expected)):
        raise CheckpointError(f"{file}: refused, it holds {strange[0]!r}, which {what} has")
    for name, shape in expected.items():
        if name not in tensors:
            raise CheckpointError(f"{file}: refused, tensor {name} is missing")
        if tuple(tensors[name].shape) != shape:
            raise CheckpointError(f"{file}: refused, {name}: shape {tuple(tensors[name].shape)}, expected {shape}")


def save_tensors(target: Path, tensors: Mapping[str, Tensor], source: Path) -> Path:
    """Write tensors as safetensors; an earlier file is replaced when the new one is whole.

    Args:
        source: whose permissions the new file gets, so that it is not private to whoever converts.

    Raises:
        CheckpointError: it cannot be written.
    """
    partial = target.with_suffix(".partial")
    try:
        with step(f"writing {target.name}"):
            ordered = {name: tensors[name].contiguous() for name in sorted(tensors)}
            save_file(ordered, partial, metadata={"format": "pt"})
        partial.chmod(source.stat().st_mode & 0o777)
        return partial.replace(target)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{target.name}: cannot be written ({type(error).__name__})") from None
    finally:
        partial.unlink(missing_ok=True)
