"""Reads the weights of a checkpoint folder, module by module.

The files are safetensors, whole (`model.safetensors`) or in shards named by `model.safetensors.index.json`. They are
memory-mapped: a process touches only the tensors that its own stage names.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from voice_clone.array_kinds import Numbers, as_tensor, in_float32
from voice_clone.checkpoint_folder import MAX_HEADER, missing, shard_files, weight_header
from voice_clone.errors import CheckpointError
from voice_clone.mapped_weights import MappedWeights, Read

if TYPE_CHECKING:  # a stage that finds its weights packed does without torch
    import torch
    from torch import Tensor, nn


WEIGHT_NORM = "weight_g", "weight_v"
PARAMETRIZED = "parametrizations.weight.original0", "parametrizations.weight.original1"
"""How torch names the length and the direction of a weight-normed weight, in its older and its newer form."""

LLAMA_NAMES = (
    (r"\.mlp\.gate_proj\.", ".feed_forward.w1."),
    (r"\.mlp\.down_proj\.", ".feed_forward.w2."),
    (r"\.mlp\.up_proj\.", ".feed_forward.w3."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
)
"""Our names of a layer's parts -> those of Llama's first code; see `CheckpointFiles.names`."""
DAC_NAMES = (
    (r"\.act1\.", ".block.0."),
    (r"\.conv1\.", ".block.1."),
    (r"\.act2\.", ".block.2."),
    (r"\.conv2\.", ".block.3."),
)
"""The same for a `ResidualUnit` in DAC's code."""


class Source(NamedTuple):
    """What a module's tensor is made of.

    Attributes:
        shapes: of the tensors in the file, by name.
        make: takes these tensors in the same order, and returns the module's.
    """

    shapes: Mapping[str, tuple[int, ...]]
    make: Callable[..., Tensor]


def as_it_is(tensor: Tensor) -> Tensor:
    """Return the tensor: the `make` of one that is in our form already."""
    return tensor


def fold(length: Numbers, direction: Numbers) -> Numbers:
    """Return a weight-normed weight (Salimans & Kingma 2016) of the length [O, 1, 1] and the direction [O, I, K] of
    each slice of its first dimension.
    """
    direction = in_float32(direction)
    if isinstance(direction, np.ndarray):
        squares = np.square(direction, dtype=np.float64).sum(axis=(1, 2))
        norms: Numbers = np.sqrt(squares).astype(np.float32)
    else:
        import torch

        norms = torch.linalg.vector_norm(direction.flatten(1), dim=1)
    return direction * (in_float32(length) / norms[:, None, None])


def weight_normed(stem: str, shape: tuple[int, ...], names: tuple[str, str]) -> Source:
    """Return the source of a weight-normed weight.

    Args:
        stem: the official name without `weight`.
        names: `WEIGHT_NORM` or `PARAMETRIZED`.
    """
    length, direction = names
    return Source({stem + length: (shape[0], 1, 1), stem + direction: shape}, fold)


def halves_apart(rows: Numbers, head_dim: int) -> Numbers:
    """Sort the D rows of each head, along the first dimension: first 0, 2, 4, ..., then 1, 3, 5, ...

    If rotary dimensions 2i and 2i + 1 of queries and keys turn together before, i and i + D/2 do so afterwards. The
    products of queries and keys stay the same.
    """
    heads = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    apart: Numbers = heads.swapaxes(1, 2).reshape(rows.shape)
    return apart


def part_of_qkv(name: str, part: str, rows: tuple[int, int, int], inputs: int, head_dim: int) -> Source:
    """Return the source of queries, keys or values whose matrices are one; interleaved rotary dimensions become halves.

    Args:
        name: of the official matrix.
        part: q, k or v.
        rows: of each of them.
    """
    place = "qkv".index(part)
    first, last = sum(rows[:place]), sum(rows[: place + 1])

    def make(matrix: Tensor) -> Tensor:
        return matrix[first:last] if part == "v" else halves_apart(matrix[first:last], head_dim)

    return Source({name: (sum(rows), inputs)}, make)


class CheckpointFiles:
    """The weights in a checkpoint folder.

    Attributes:
        names: patterns of parts of our names, each with what the official name has instead; applied in this order.

    Raises:
        CheckpointError: the configuration is missing or malformed, or that of another family.
    """

    names: ClassVar[Sequence[tuple[str, str]]] = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Any = self.load_config(folder)

    @staticmethod
    def load_config(folder: Path, /) -> Any:
        """Return the configuration, or None if the family reads none here."""
        return None

    def official(self, name: str) -> str:
        """Return the official name of a tensor."""
        for ours, theirs in self.names:
            name = re.sub(ours, theirs, name)
        return name

    def source(self, name: str, shape: tuple[int, ...]) -> Source:
        """Return the source of a module's tensor: the tensor of the official name. A family whose checkpoints have
        another layout overrides this.
        """
        return Source({self.official(name): shape}, as_it_is)

    def sources(self, module: nn.Module, prefix: str = "") -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the tensors that a module is made of; `prefix` as in `load`."""
        found: dict[str, tuple[int, ...]] = {}
        for name, tensor in module.state_dict().items():
            found |= self.source(prefix + name, tuple(tensor.shape)).shapes
        return found

    def shapes(self, file: str) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all tensors in a whole file.

        Raises:
            CheckpointError: it cannot be read.
        """
        _, entries = weight_header(self.folder, f"{file}.safetensors")
        return {name: tuple(entries[name]["shape"]) for name in sorted(entries)}

    def load(
        self,
        module: nn.Module,
        file: str,
        prefix: str,
        dtype: torch.dtype | None,
        device: torch.device | str,
        keep: Collection[str] = (),
        without: tuple[str, ...] = (),
    ) -> None:
        """Fill a module that was built on the meta device.

        Args:
            module: receives the tensors `prefix` + each name of its state, as `source` says; others stay unread.
            file: the weight file, without its ending.
            prefix: of the module's names in the file, with the dot.
            dtype: to convert to; None: as in the file.
            device: where the tensors go.
            keep: names, without the prefix, of tensors that stay as in the file, under the same name there: its dtype,
                memory-mapped, on the CPU.
            without: beginnings of names, without the prefix, of tensors that stay on the meta device, to be loaded
                later, module by module.

        Raises:
            CheckpointError: a file cannot be read, or a tensor is missing or of a wrong shape or type.
        """
        expected = {name: tensor for name, tensor in module.state_dict().items() if not name.startswith(without)}
        weights = MappedWeights(self.folder, file)
        state = {name: as_tensor(weights.read(prefix + name, tuple(expected[name].shape))) for name in keep}
        for name in [each for each in expected if each not in keep]:
            source = self.source(prefix + name, tuple(expected[name].shape))
            found = (as_tensor(weights.read(*each)) for each in source.shapes.items())
            state[name] = source.make(*found).to(device, dtype, copy=True)
        module.load_state_dict(state, strict=not without, assign=True)

    def reader(self, file: str) -> Read:
        """Return a function that reads a module's tensor by its name, with the prefix, as an array in a map of the
        file. It is for networks whose tensors are whole tensors of the file, or parts of them.

        Raises:
            CheckpointError: as of `MappedWeights.read`, which the function raises.
        """
        weights = MappedWeights(self.folder, file)

        def read(name: str, shape: tuple[int, ...]) -> Numbers:
            source = self.source(name, shape)
            return source.make(*(weights.read(*each) for each in source.shapes.items()))

        return read

    def fingerprint(self, config: Any, file: str, prefix: str, names: Collection[str]) -> str:
        """Hash a stage by SHA-256, in hex: its configuration and the names, types, shapes and bytes of its tensors.

        Two checkpoints with equal fingerprints compute the same; how the tensors are spread over shards does not count.

        Args:
            config: the stage's, fit for JSON.
            file, prefix: as in `load`.
            names: the tensors, without the prefix.

        Raises:
            CheckpointError: a file cannot be read or a tensor is missing.
        """
        digest = hashlib.sha256(_canonical(config))
        weights = MappedWeights(self.folder, file)
        for name in sorted(prefix + name for name in names):
            kind, shape, numbers = weights.raw(name)
            digest.update(_canonical([name, kind, shape]))
            digest.update(numbers.data)
        return digest.hexdigest()

    def identity(self, file: str) -> list[Any]:
        """Identify a weight file and its present state without reading it whole.

        Return a list for JSON. It has for each file the name, the header's digest, the size, the inode and the times of
        change.

        Raises:
            CheckpointError: a file cannot be read.
        """
        shards = shard_files(self.folder, file)
        names = [f"{file}.safetensors"] if shards is None else sorted(set(shards.values()))
        return [[name, *_state(self.folder / name, name)] for name in names]


def _state(path: Path, name: str) -> tuple[str, int, int, int, int]:
    """Return the digest of a safetensors file's header, its size, its inode and the times of its last changes."""
    try:
        with path.open("rb") as file:
            header = file.read(min(int.from_bytes(file.read(8), "little"), MAX_HEADER))
            status = os.fstat(file.fileno())
    except FileNotFoundError:
        raise missing(name) from None
    except OSError:
        raise CheckpointError(f"{name}: the file cannot be read") from None
    digest = hashlib.sha256(header).hexdigest()
    return digest, status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"
