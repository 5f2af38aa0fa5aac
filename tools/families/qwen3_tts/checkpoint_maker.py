"""Makes checkpoints with random weights in the exact official on-disk format.

The official package and this project load them as they load a released one; what they say is noise. Same arguments,
same bytes. Sizes: `tiny` for tests and the demo (17 MB), `0.6b` and `1.7b` with the released shapes (2.5 and 4.5 GB).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tools.families.qwen3_tts.checkpoint_config import (
    CODEC_PREPROCESSOR,
    GENERATION,
    SHAPES,
    TEXT_PREPROCESSOR,
    Shape,
    codec_config,
    model_config,
)
from tools.families.qwen3_tts.checkpoint_tokenizer import SPECIAL_TOKENS, write_tokenizer
from tools.families.qwen3_tts.checkpoint_weights import Shapes, codec_shapes, model_shapes, random_tensor
from tools.new_folder import new_folder
from voice_clone.families.qwen3_tts.config import CODEC_FOLDER, Qwen3TTSConfig, load_config

DTYPES = {"bf16": (torch.bfloat16, "BF16"), "fp32": (torch.float32, "F32")}
RELEASED_TEXT_VOCABULARY = 151936  # padded: the tokenizer has fewer


def make_checkpoint(shape: str, seed: int, folder: Path, dtype: str = "bf16", shards: int = 1) -> None:
    """Write a checkpoint; `folder` appears when it is whole.

    Args:
        shape: a key of `SHAPES`.
        seed: of all weights.
        folder: new; its parents are made.
        dtype: a key of `DTYPES`, for model.safetensors; the codec is fp32 as released.
        shards: number of files for model.safetensors' tensors; 1: one file and no index.

    Raises:
        FileExistsError: there is something at `folder`.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists; give a new folder")
    with new_folder(folder) as partial:
        config = write_configuration(SHAPES[shape], partial)
        _write_weights(partial, model_shapes(config), seed, dtype, shards)
        _write_weights(partial / CODEC_FOLDER, codec_shapes(config), seed, "fp32", 1)


def make_endless(checkpoint: Path, folder: Path) -> Path:
    """A checkpoint like `checkpoint`, in the new folder `folder`, whose speech never ends, not even by chance.

    It links to the files of `checkpoint`, and needs them.
    """
    folder.mkdir()
    for file in checkpoint.iterdir():
        if file.name != "model.safetensors":
            (folder / file.name).symlink_to(file.resolve())
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["talker.codec_head.weight"][load_config(checkpoint).talker.codec_eos_token_id] = 0  # far from the largest
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_configuration(
    sizes: Shape,
    folder: Path,
    merges: Sequence[tuple[str, str]] | None = None,
    generation: Mapping[str, Any] = GENERATION,
) -> Qwen3TTSConfig:
    """Write all but the weights to the existing `folder`, and read it back; `merges`: of the tokenizer."""
    ids = write_tokenizer(folder, sizes.base_vocabulary, merges)
    vocabulary = RELEASED_TEXT_VOCABULARY
    if sizes.base_vocabulary is None:
        vocabulary = ids[SPECIAL_TOKENS[-1]] + 1
    codec = folder / CODEC_FOLDER
    codec.mkdir()
    for path, content in (
        (folder / "config.json", model_config(sizes, ids, vocabulary)),
        (folder / "generation_config.json", generation),
        (folder / "preprocessor_config.json", TEXT_PREPROCESSOR),
        (codec / "config.json", codec_config(sizes)),
        (codec / "preprocessor_config.json", CODEC_PREPROCESSOR),
    ):
        _write_json(path, content)
    return load_config(folder)


def _write_weights(folder: Path, shapes: Shapes, seed: int, dtype: str, shards: int) -> None:
    if shards == 1:
        _write_safetensors(folder / "model.safetensors", shapes, seed, dtype)
        return
    size = DTYPES[dtype][0].itemsize
    parts = list(_split(shapes, shards))
    weight_map = {}
    for number, names in enumerate(parts, start=1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        _write_safetensors(folder / file, {name: shapes[name] for name in names}, seed, dtype)
        weight_map.update(dict.fromkeys(names, file))
    total = sum(_elements(shape) for shape in shapes.values()) * size
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(folder / "model.safetensors.index.json", index)


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


def _write_safetensors(path: Path, shapes: Shapes, seed: int, dtype: str) -> None:
    """Write one safetensors file, tensor by tensor: memory holds one of them at a time."""
    torch_dtype, name_of_dtype = DTYPES[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + _elements(shape) * torch_dtype.itemsize
        header[name] = {"dtype": name_of_dtype, "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for name, shape in shapes.items():
            tensor = random_tensor(name, shape, seed).to(torch_dtype)
            file.write(tensor.view(torch.uint8).numpy().data)


def _elements(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
