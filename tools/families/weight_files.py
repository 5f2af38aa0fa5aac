"""The files of random checkpoints: safetensors, whole or in shards, JSON, and the noise in them."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from voice_clone_server.families.pickles import Shapes as Shapes
from voice_clone_server.new_folder import unused_folder
from voice_clone_server.steps import step

Tensors = Callable[[str, tuple[int, ...]], Tensor]

DTYPES = {"bf16": (torch.bfloat16, "BF16"), "fp32": (torch.float32, "F32")}


class MakeCheckpoint(Protocol):
    """Writes a checkpoint to a new folder."""

    def __call__(self, shape: str, seed: int, folder: Path, dtype: str = ..., shards: int = ...) -> None: ...


def maker(write: Callable[[str, int, Path, str, int], None], dtype: str = "bf16") -> MakeCheckpoint:
    """A family's `make_checkpoint`, whose folder appears when it is whole; `dtype` is what its weights have if unasked.

    Args:
        write: fills an empty folder: shape, seed, folder, dtype and shards.

    Returns:
        A function that raises FileExistsError if there is something at `folder`. Its arguments:

        shape: a key of the family's `SHAPES`.
        seed: of all weights.
        folder: new; its parents are made.
        dtype: a key of `DTYPES`, for the weights that are not released in fp32.
        shards: files of the talker's weights where the release may have several; 1: one file and no index.
    """

    def make_checkpoint(shape: str, seed: int, folder: Path, dtype: str = dtype, shards: int = 1) -> None:
        with unused_folder(folder) as made:
            write(shape, seed, made, dtype, shards)

    return make_checkpoint


def write_weights(folder: Path, shapes: Shapes, tensor: Tensors, dtype: str, shards: int, name: str = "model") -> None:
    """Write `name`.safetensors, or its shards and their index, tensor by tensor.

    Args:
        tensor: makes each tensor, fp32, of its name and shape.
        dtype: a key of `DTYPES`.
        shards: number of files; 1: one file and no index.
    """
    if shards == 1:
        _write_safetensors(folder / f"{name}.safetensors", shapes, tensor, dtype)
        return
    size = DTYPES[dtype][0].itemsize
    parts = list(_split(shapes, shards))
    weight_map = {}
    for number, names in enumerate(parts, start=1):
        file = f"{name}-{number:05}-of-{len(parts):05}.safetensors"
        _write_safetensors(folder / file, {name: shapes[name] for name in names}, tensor, dtype)
        weight_map.update(dict.fromkeys(names, file))
    total = sum(_elements(shape) for shape in shapes.values()) * size
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / f"{name}.safetensors.index.json", index)


def _split(shapes: Shapes, shards: int) -> Iterator[list[str]]:
    """Names in order, in at most `shards` parts of about equal size, none empty."""
    share = sum(_elements(shape) for shape in shapes.values()) / shards
    part: list[str] = []
    filled, limit = 0, share
    for name, shape in shapes.items():
        part.append(name)
        filled += _elements(shape)
        if filled >= limit:
            yield part
            part = []
            limit = (filled // share + 1) * share
    if part:
        yield part


def _write_safetensors(path: Path, shapes: Shapes, make: Tensors, dtype: str) -> None:
    """Write one safetensors file, tensor by tensor: memory holds one of them at a time."""
    torch_dtype, name_of_dtype = DTYPES[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + _elements(shape) * torch_dtype.itemsize
        header[name] = {"dtype": name_of_dtype, "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file, step(lambda: f"writing {path.name}, {file.tell() / 1e9:.1f} of {end / 1e9:.1f} GB"):
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for name, shape in shapes.items():
            tensor = make(name, shape).to(torch_dtype)
            file.write(tensor.view(torch.uint8).numpy().data)


def _elements(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """As people read it."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def noise_of(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Normal noise of a tensor, float32; it depends on the arguments alone."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.randn(shape, generator=generator)


def with_zero_row(checkpoint: Path, folder: Path, name: str, tensor: str, row: int) -> Path:
    """As `with_changed`, with zeros in one row of a tensor."""

    def change(tensors: dict[str, Tensor]) -> None:
        tensors[tensor][row] = 0

    return with_changed(checkpoint, folder, name, [tensor], change)


def with_changed(
    checkpoint: Path, folder: Path, name: str, tensors: Collection[str], change: Callable[[dict[str, Tensor]], None]
) -> Path:
    """A checkpoint like `checkpoint`, in the new folder `folder`, with other numbers in some tensors.

    It links to the files of `checkpoint`, and needs them.

    Args:
        name: of the weights, as of `write_weights`.
        tensors: their names; all of them are in one file.
        change: gets the tensors of that file, and changes them in place.
    """
    index = checkpoint / f"{name}.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"] if index.is_file() else {}
    [changed] = {places.get(tensor, f"{name}.safetensors") for tensor in tensors}
    folder.mkdir()
    for file in checkpoint.iterdir():
        if file.name != changed:
            (folder / file.name).symlink_to(file.resolve())
    found = load_file(checkpoint / changed)
    change(found)
    save_file(found, folder / changed, metadata={"format": "pt"})
    return folder
