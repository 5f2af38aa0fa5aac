"""The weights of a checkpoint folder as arrays of numpy, in maps of its files: for what computes without torch."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from voice_clone.checkpoint_folder import shard_files, weight_header
from voice_clone.errors import CheckpointError

_KINDS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}  # numpy has no bf16


class MappedWeights:
    """The tensors of a weight file, whole or in shards. The maps last as long as their arrays.

    Args:
        folder: of the checkpoint.
        file: the weight file, without its ending.
    """

    def __init__(self, folder: Path, file: str) -> None:
        self._folder, self._file = folder, file
        self._shards = shard_files(folder, file)
        self._opened: dict[str, tuple[mmap.mmap, int, Mapping[str, Any]]] = {}

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """A tensor of this shape: float32, float16, or the bits of bf16 as uint16.

        Raises:
            CheckpointError: a file cannot be read, or the tensor is missing or of a wrong shape or type.
        """
        file = f"{self._file}.safetensors"
        if self._shards is not None:
            if name not in self._shards:
                raise CheckpointError(f"{file}.index.json: tensor {name} is missing")
            file = self._shards[name]
        if file not in self._opened:
            self._opened[file] = _open(self._folder, file)
        mapped, start, header = self._opened[file]
        if name not in header:
            raise CheckpointError(f"{file}: tensor {name} is missing")
        kind, found, (begin, _) = (header[name][key] for key in ("dtype", "shape", "data_offsets"))
        if tuple(found) != shape:
            raise CheckpointError(f"{file}: {name}: shape {tuple(found)}, expected {shape}")
        if kind not in _KINDS:
            raise CheckpointError(f"{file}: {name}: type {kind}, expected one of {', '.join(_KINDS)}")
        array: NDArray[Any] = np.frombuffer(mapped, _KINDS[kind], math.prod(shape), start + begin).reshape(shape)
        return array


def _open(folder: Path, name: str) -> tuple[mmap.mmap, int, Mapping[str, Any]]:
    """The map of a file, where its tensors begin, and its header."""
    start, header = weight_header(folder, name)
    try:
        with safe_open(folder / name, framework="np"):  # it checks that each tensor's bytes fit its shape and type
            pass
        with (folder / name).open("rb") as file:
            # Private: torch makes a tensor of no array that cannot be written to.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), start, header
    except (OSError, SafetensorError):
        raise CheckpointError(f"{name}: not a whole safetensors file; it may have been cut short") from None
