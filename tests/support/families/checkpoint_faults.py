"""Faults that tests put into a checkpoint folder, and how the tools refuse it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.families.recognition import FamilyError
from tools.triton_server import TritonServer
from voice_clone.errors import CheckpointError

Fault = Callable[[Path], object]


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


def without(*names: str) -> Fault:
    """Files are missing; those that are not there anyway are left as they are."""

    def change(folder: Path) -> None:
        for name in names:
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


def assert_refused_before_a_start(check: Callable[[Path], None], folder: Path, message: str) -> None:
    """By a family's preflight, in one line that begins so, and in the same words by each tool that starts a server."""
    with pytest.raises(CheckpointError) as caught:
        check(folder)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    with pytest.raises(FamilyError) as refused:
        TritonServer(folder)
    assert str(refused.value) == f"{folder}: {caught.value}"
