"""codec.pth of a checkpoint, a pickle, to codec.safetensors, once. It runs nothing that it finds.

torch's unpickler for weights alone knows tensors and plain containers; whatever else a pickle asks for, it refuses. It
would load a dictionary of other things, so names, types and shapes are checked: the codec's sizes are read from a few
tensors, and then the names and shapes of all must be exactly those of such a codec. Rotary tables and masks
are dropped.
"""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from tools.families.fish_speech.checkpoint_weights import codec_shapes
from voice_clone.errors import CheckpointError
from voice_clone.families.fish_speech.checkpoint import CODEC, Checkpoint
from voice_clone.families.fish_speech.config import codec_config

SOURCE = f"{CODEC}.pth"
_TABLES = (".freqs_cis", ".causal_mask")
_SPELLINGS = {".parametrizations.weight.original0": ".weight_g", ".parametrizations.weight.original1": ".weight_v"}
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_WRAPPERS = ("generator", "state_dict")


def convert(checkpoint: Path) -> Path:
    """Write codec.safetensors beside codec.pth; an earlier one is replaced.

    Raises:
        CheckpointError: the file is missing or refused, or the new one cannot be written; one line says why.
    """
    target = checkpoint / f"{CODEC}.safetensors"
    partial = target.with_suffix(".partial")
    tensors = _read(checkpoint)
    try:
        save_file(tensors, partial, metadata={"format": "pt"})
        partial.chmod((checkpoint / SOURCE).stat().st_mode & 0o777)  # not private to whoever converts
        partial.replace(target)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{target.name}: cannot be written ({type(error).__name__})") from None
    finally:
        partial.unlink(missing_ok=True)
    return target


def _read(folder: Path) -> dict[str, Tensor]:
    checkpoint = Checkpoint(folder)
    if not (folder / SOURCE).is_file():
        raise CheckpointError(f"{SOURCE}: the file is missing from the checkpoint folder")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the one line says enough
            loaded = torch.load(folder / SOURCE, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        raise CheckpointError(f"{SOURCE}: refused, it holds more than tensors; nothing of it was run") from None
    except Exception:  # of any kind: torch unpickles what a damaged or forged file says until it makes no sense
        raise CheckpointError(f"{SOURCE}: not a whole file of weights; it may have been cut short") from None
    tensors = _named(loaded)
    codec = codec_config({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    expected = codec_shapes(checkpoint, codec)
    if strange := sorted(set(tensors) - set(expected)):
        raise CheckpointError(f"{SOURCE}: refused, it holds {strange[0]!r}, which no codec of this family has")
    for name, shape in expected.items():
        if name not in tensors:
            raise CheckpointError(f"{SOURCE}: refused, tensor {name} is missing")
        if tuple(tensors[name].shape) != shape:
            raise CheckpointError(f"{SOURCE}: refused, {name}: shape {tuple(tensors[name].shape)}, expected {shape}")
    return {name: tensors[name].contiguous() for name in sorted(tensors)}


def _named(loaded: Any) -> dict[str, Tensor]:
    """The tensors under one spelling of their names, without tables.

    Raises:
        CheckpointError: something is no plain tensor of numbers, or a name is there twice.
    """
    if isinstance(loaded, dict) and len(loaded) <= len(_WRAPPERS):
        loaded = next((loaded[key] for key in _WRAPPERS if isinstance(loaded.get(key), dict)), loaded)
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{SOURCE}: refused, it holds {type(loaded).__name__} instead of tensors by name")
    tensors: dict[str, Tensor] = {}
    memories: set[int] = set()
    for name, tensor in loaded.items():
        if not isinstance(name, str) or len(name) > 200 or not name.isprintable():
            raise CheckpointError(f"{SOURCE}: refused, a name is no text")
        if name.endswith(_TABLES):
            continue
        if not _is_plain(tensor):
            raise CheckpointError(f"{SOURCE}: refused, {name!r} is no plain tensor of floating-point numbers")
        for spelling, ours in _SPELLINGS.items():
            if name.endswith(spelling):
                name = name.removesuffix(spelling) + ours
        if name in tensors:
            raise CheckpointError(f"{SOURCE}: refused, {name!r} is there twice")
        memory = tensor.untyped_storage().data_ptr()
        if memory in memories:
            raise CheckpointError(f"{SOURCE}: refused, {name!r} lies in the memory of another tensor")
        memories.add(memory)
        tensors[name] = tensor
    return tensors


def _is_plain(tensor: Any) -> bool:
    """Whether it is a whole tensor of floating-point numbers in memory."""
    if type(tensor) is not Tensor or tensor.dtype not in _FLOATS or tensor.is_nested:
        return False
    in_memory = tensor.layout is torch.strided and tensor.device.type == "cpu"
    return in_memory and tensor.is_contiguous() and not tensor.is_neg()
