"""The weights of a checkpoint folder as arrays of numpy, in maps of its files: for what computes without torch."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.checkpoint_folder import check_tensor, not_whole, shard_files, tensor_file, weight_header
from voice_clone.errors import CheckpointError
from voice_clone.tensor_header import Entries

Read = Callable[[str, tuple[int, ...]], Any]
"""A tensor of a checkpoint, by its name and shape."""

_KINDS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}  # numpy has no bf16


class MappedWeights:
    """The tensors of a weight file, whole or in shards.

    Each array has a map of its own, of its part of the file. The map lasts as long as the array, and so does the memory
    of the pages that were read.

    Args:
        folder: of the checkpoint.
        file: the weight file, without its ending.
    """

    def __init__(self, folder: Path, file: str) -> None:
        self._folder, self._file = folder, file
        self._shards = shard_files(folder, file)
        self._headers: dict[str, tuple[int, Entries]] = {}

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """A tensor of this shape: float32, float16, or the bits of bf16 as uint16. What is written to it does not
        reach the file.

        Raises:
            CheckpointError: a file cannot be read, or the tensor is missing or of a wrong shape or type.
        """
        file, kind, found, numbers = self._find(name)
        check_tensor(file, name, kind, found, shape)
        return self._map(file, *numbers).view(_KINDS[kind]).reshape(shape)

    def raw(self, name: str) -> tuple[str, tuple[int, ...], NDArray[np.uint8]]:
        """A tensor of any type: its type, as safetensors names it, its shape and its bytes.

        Raises:
            CheckpointError: a file cannot be read, or the tensor is missing.
        """
        file, kind, shape, numbers = self._find(name)
        return kind, shape, self._map(file, *numbers)

    def _find(self, name: str) -> tuple[str, str, tuple[int, ...], tuple[int, int]]:
        """A tensor's file, type and shape, and where its bytes begin and end in the file."""
        file = tensor_file(self._shards, self._file, name)
        if file not in self._headers:
            self._headers[file] = weight_header(self._folder, file)
        start, header = self._headers[file]
        if name not in header:
            raise CheckpointError(f"{file}: tensor {name} is missing")
        kind, shape, (begin, end) = (header[name][key] for key in ("dtype", "shape", "data_offsets"))
        return file, kind, tuple(shape), (start + begin, start + end)

    def _map(self, file: str, begin: int, end: int) -> NDArray[np.uint8]:
        if begin == end:
            return np.zeros(0, np.uint8)
        before = begin % mmap.ALLOCATIONGRANULARITY  # a map begins at a page
        try:
            with (self._folder / file).open("rb") as opened:
                # Private: torch makes a tensor of no array that cannot be written to.
                mapped = mmap.mmap(
                    opened.fileno(), end - begin + before, access=mmap.ACCESS_COPY, offset=begin - before
                )
        except (OSError, ValueError):
            raise not_whole(file) from None
        return np.frombuffer(mapped, np.uint8, offset=before)
