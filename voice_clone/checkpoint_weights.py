"""Whether the weight files of a checkpoint are there and whole, from their first bytes. Needs no torch.

A safetensors file begins with the length of its header (8 bytes, little-endian) and the header, a JSON object that
gives each tensor's place behind the header: the last place is the end of the file.
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from pathlib import Path

from voice_clone.checkpoint_config import read_json
from voice_clone.errors import CheckpointError

MOST = 100_000_000  # bytes of a header, as the format has it


def check_weights(folder: Path, file: str) -> None:
    """Check `folder/file.safetensors`, or the shards that its index names.

    Args:
        file: the weight file, without its ending.

    Raises:
        CheckpointError: a file is missing or cut short.
    """
    whole, index = f"{file}.safetensors", f"{file}.safetensors.index.json"
    if (folder / whole).exists() or not (folder / index).exists():
        _check_file(folder, whole)
        return
    shards = read_json(folder, index).get("weight_map")
    if not isinstance(shards, dict):
        raise CheckpointError(f"{index}: holds no weight_map")
    for shard in sorted({str(shard) for shard in shards.values()}):
        _check_file(folder, str(Path(file).with_name(shard)))


def _check_file(folder: Path, name: str) -> None:
    try:
        with (folder / name).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if size <= MOST else {}
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
        whole = (folder / name).stat().st_size == 8 + size + max(ends)
    except FileNotFoundError:
        raise CheckpointError(f"{name}: the file is missing from the checkpoint folder") from None
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        whole = False
    if not whole:
        raise CheckpointError(f"{name}: not a whole safetensors file; it may have been cut short")
