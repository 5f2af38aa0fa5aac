"""Reads the JSON files of a checkpoint into dataclasses. Needs no torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from voice_clone.errors import CheckpointError

T = TypeVar("T")


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in `folder/name`.

    Raises:
        CheckpointError: the file is missing or holds no JSON object.
    """
    try:
        loaded = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{name}: the file is missing from the checkpoint folder") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{name}: not readable as JSON ({type(error).__name__})") from None
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{name}: holds no JSON object")
    return loaded


def parse(cls: type[T], values: Any, where: str) -> T:
    """Build the dataclass `cls`, with nested dataclasses, from a JSON object; unknown keys are ignored.

    Args:
        where: the file and the key, for the error.

    Raises:
        CheckpointError: a key is missing or of a wrong type.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"{where}: expected a JSON object")
    hints = get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for entry in dataclasses.fields(cls):  # type: ignore[arg-type]
        if values.get(entry.name) is None:
            if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
                raise CheckpointError(f"{where}: the key {entry.name!r} is missing")
            continue
        arguments[entry.name] = _convert(hints[entry.name], values[entry.name], f"{where}: {entry.name}")
    return cls(**arguments)


def _convert(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return parse(kind, value, where)  # type: ignore[arg-type]
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind in (int, bool, str) and type(value) is kind:
        return value
    if kind == tuple[int, ...] and isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    if isinstance(value, dict) and kind == Mapping[str, int]:
        return dict(value)
    raise CheckpointError(f"{where}: unexpected value {value!r}")
