"""Faults that tests put into a checkpoint folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

Fault = Callable[[Path], object]


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


def without(*names: str) -> Fault:
    """Files or folders are missing; those that are not there anyway are left as they are."""

    def change(folder: Path) -> None:
        for name in names:
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)

    return change


def cut(name: str, size: int) -> Fault:
    """A file ends after so many bytes; below 0, so many are missing."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def configured(part: str, **values: Any) -> Fault:
    """Other values in config.json, or in one of its objects."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (config[part] if part else config).update(values)
        (folder / "config.json").write_text(json.dumps(config))

    return change


def holding(name: str, content: bytes) -> Fault:
    """A file has another content."""
    return lambda folder: (folder / name).write_bytes(content)


def renamed(old: str, new: str) -> Fault:
    """Another word in tokenizer.json."""

    def change(folder: Path) -> None:
        file = folder / "tokenizer.json"
        file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")

    return change
