"""What a family has for the tools: modules in tools/families/<family>/, all of them optional.

    checkpoint_maker.py  random checkpoints in the family's official format, a `CheckpointMaker`
    pickle_converter.py  what is released as pickles, such as a codec, to safetensors, a `PickleConverter`
    completer.py         what a release has apart from its weights, a `Completer`
    repository.py        what a built repository can be asked for, a `RepositoryOptions`, where a stage has ONNX graphs

A tool finds a module by the family's name, or by that of the family that it is a kind of; the protocols below say what
is called in it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from voice_clone.settings import PRECISIONS as NUMBER_FORMATS
from voice_clone_server.diagnosis.workload import Released, Workload
from voice_clone_server.families.cards import card_of, card_of_weights
from voice_clone_server.families.names import kind_of

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Encoder:
    """An encoder's network, which a built repository may have as a model of its own.

    Attributes:
        graph: name of its ONNX graph.
        sample_rate: Hz, of its waveform.
        output: name, type and sizes of its output, without the batch.
    """

    graph: str
    sample_rate: int
    output: tuple[str, str, tuple[int, ...]]


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


class PickleConverter(Protocol):
    """Makes safetensors files of what a checkpoint has as pickles; `tools.families.pickles` has what all do alike."""

    def convert(self, checkpoint: Path) -> list[Path]:
        """Write the files into the checkpoint's folder and return them; earlier ones are replaced.

        Raises:
            CheckpointError: a pickle is missing, or holds anything but the expected tensors; nothing of it was run.
        """


class Completer(Protocol):
    """Writes what a release has apart from its weights, such as the file by which its checkpoints are recognised."""

    def complete(self, checkpoint: Path, source: str) -> list[Path]:
        """Write the files into the checkpoint's folder and return them.

        Args:
            source: where the sizes are read from; empty: the official configuration that is named as the folder is.

        Raises:
            CheckpointError: the source, or another file, is missing or malformed.
        """


class RepositoryOptions(Protocol):
    """What tools/build_repository can be asked for, by stage: a model's name without the family's."""

    PRECISIONS: Mapping[str, Sequence[str]]
    """Values of the setting `precision`, for stages whose model has it."""
    ENCODERS: Sequence[str]
    """Stages that take a warm-up and a number of instances, and whose networks can be models of their own."""

    def encoders(self, checkpoint: Path) -> Mapping[str, Sequence[Encoder]]:
        """The networks of `ENCODERS`, by stage. Raises `CheckpointError`."""

    def export(self, checkpoint: Path, folders: Mapping[str, Path]) -> Mapping[str, str]:
        """Write graphs, by name, to folders; their fingerprints by name. Raises `CheckpointError`."""


class PythonOptions:
    """The `RepositoryOptions` of a family that brings none along: its stages run in Python alone."""

    PRECISIONS: Mapping[str, Sequence[str]] = {
        "talker": ("auto", *NUMBER_FORMATS),
        "code2wav": ("auto", "fp32", "tf32", "bf16"),
    }
    ENCODERS: Sequence[str] = ()

    def encoders(self, checkpoint: Path) -> Mapping[str, Sequence[Encoder]]:
        """None."""
        return {}

    def export(self, checkpoint: Path, folders: Mapping[str, Path]) -> Mapping[str, str]:
        """None."""
        return {}


def families_with(module: str) -> list[str]:
    """The families that bring a module along: first the one that says that it is the `DEFAULT`, then by name."""
    found = [file.parent.name for file in FOLDER.glob(f"*/{module}.py")]
    return sorted(found, key=lambda family: (not _is_default(family), family))


def _is_default(family: str) -> bool:
    return bool(getattr(importlib.import_module(f"tools.families.{family}"), "DEFAULT", False))


def checkpoint_maker(family: str) -> CheckpointMaker:
    """The family's; it is one of `families_with("checkpoint_maker")`."""
    return cast(CheckpointMaker, _module(family, "checkpoint_maker"))


def pickle_converter(family: str) -> PickleConverter:
    """The family's; it is one of `families_with("pickle_converter")`."""
    return cast(PickleConverter, _module(family, "pickle_converter"))


def completer_of(checkpoint: Path) -> Completer | None:
    """That of the family whose weights are in a folder; None: no family with one has such weights."""
    card = card_of_weights(checkpoint)
    return cast(Completer, _module(card.name, "completer")) if card else None


def repository_options(family: str) -> RepositoryOptions:
    """Those that the family brings along, else `PythonOptions`."""
    if not _has(family, "repository"):
        return PythonOptions()
    return cast(RepositoryOptions, _module(family, "repository"))


def workloads(family: str) -> dict[str, Workload]:
    """What the released models of a family cost, by the names of their shapes."""
    card, _ = card_of(family) or (None, "")
    processes = len(card.encoders) if card else 1
    return {shape: each.workload(processes) for shape, each in checkpoint_maker(family).released().items()}


def _has(family: str, name: str) -> bool:
    return (_folder(family) / f"{name}.py").is_file()


def _module(family: str, name: str) -> Any:
    return importlib.import_module(f"tools.families.{_folder(family).name}.{name}")


def _folder(family: str) -> Path:
    return FOLDER / kind_of(family, [each.parent.name for each in FOLDER.glob("*/__init__.py")])
