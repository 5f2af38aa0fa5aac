"""What a family has for the tools: the module tools/families/<family>/checkpoint_maker.py.

It makes random checkpoints in the family's official format, and is a `CheckpointMaker`. A tool finds it by the family's
name, or by that of the family that it is a kind of. What an operator's programs need of a family is in
voice_clone_server/families.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from voice_clone_server.diagnosis.workload import Released, Workload
from voice_clone_server.families.cards import card_of
from voice_clone_server.families.names import kind_of

FOLDER = Path(__file__).parent


class CheckpointMaker(Protocol):
    """Makes random checkpoints. Same arguments, same bytes."""

    SHAPES: Mapping[str, Any]
    """Sizes by name; `tiny` is for tests and the demo."""
    DTYPES: Mapping[str, Any]
    """Number formats of the weights by name."""

    def make_checkpoint(self, shape: str, seed: int, folder: Path, dtype: str = ..., shards: int = ...) -> None:
        """Write a checkpoint to a new folder, which appears when it is whole.

        Raises:
            FileExistsError: there is something at `folder`.
        """

    def make_endless(self, checkpoint: Path, folder: Path) -> Path:
        """Write a checkpoint like `checkpoint` to the new folder `folder`; its speech never ends by itself."""

    def released(self) -> Mapping[str, Released]:
        """The released models, by the names of their shapes."""


def families_with(module: str) -> list[str]:
    """The families that bring a module along: first the one that says that it is the `DEFAULT`, then by name."""
    found = [file.parent.name for file in FOLDER.glob(f"*/{module}.py")]
    return sorted(found, key=lambda family: (not _is_default(family), family))


def _is_default(family: str) -> bool:
    return bool(getattr(importlib.import_module(f"tools.families.{family}"), "DEFAULT", False))


def checkpoint_maker(family: str) -> CheckpointMaker:
    """The family's; it is one of `families_with("checkpoint_maker")`."""
    return cast(CheckpointMaker, _module(family, "checkpoint_maker"))


def workloads(family: str) -> dict[str, Workload]:
    """What the released models of a family cost, by the names of their shapes."""
    card, _ = card_of(family) or (None, "")
    processes = len(card.encoders) if card else 1
    return {shape: each.workload(processes) for shape, each in checkpoint_maker(family).released().items()}


def _module(family: str, name: str) -> Any:
    return importlib.import_module(f"tools.families.{_folder(family).name}.{name}")


def _folder(family: str) -> Path:
    return FOLDER / kind_of(family, [each.parent.name for each in FOLDER.glob("*/__init__.py")])
