"""What a family has for an operator's programs: modules in voice_clone_server/families/<family>/, all of them optional.

    completer.py         what a release has apart from its weights, a `Completer`
    pickle_converter.py  what is released as pickles, such as a codec, to safetensors, a `PickleConverter`
    repository.py        what a built repository can be asked for, a `RepositoryOptions`, where a stage has ONNX graphs

A program finds a module by the family's name, or by that of the family that it is a kind of.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from voice_clone.settings import PRECISIONS as NUMBER_FORMATS
from voice_clone_server.families.cards import card_of_weights
from voice_clone_server.families.names import kind_of

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class EncoderGraph:
    """An encoder's network, which a built repository may have as a model of its own.

    Attributes:
        graph: name of its ONNX graph.
        sample_rate: Hz, of its waveform.
        output: name, type and sizes of its output, without the batch.
    """

    graph: str
    sample_rate: int
    output: tuple[str, str, tuple[int, ...]]


class Completer(Protocol):
    """Writes what a release has apart from its weights, such as the file by which its checkpoints are recognised."""

    def complete(self, checkpoint: Path, source: str) -> list[Path]:
        """Write the files into the checkpoint's folder and return them.

        Args:
            source: where the sizes are read from; empty: the official configuration that is named as the folder is.

        Raises:
            CheckpointError: the source, or another file, is missing or malformed.
        """


class PickleConverter(Protocol):
    """Makes safetensors files of what a checkpoint has as pickles; `families.pickles` has what all do alike."""

    def convert(self, checkpoint: Path) -> list[Path]:
        """Write the files into the checkpoint's folder and return them; earlier ones are replaced.

        Raises:
            CheckpointError: a pickle is missing, or holds anything but the expected tensors; nothing of it was run.
        """


class RepositoryOptions(Protocol):
    """What the program build_repository can be asked for, by stage: a model's name without the family's."""

    PRECISIONS: Mapping[str, Sequence[str]]
    """Values of the setting `precision`, for stages whose model has it."""
    ENCODERS: Sequence[str]
    """Stages that take a warm-up and a number of instances, and whose networks can be models of their own."""

    def encoders(self, checkpoint: Path) -> Mapping[str, Sequence[EncoderGraph]]:
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

    def encoders(self, checkpoint: Path) -> Mapping[str, Sequence[EncoderGraph]]:
        return {}

    def export(self, checkpoint: Path, folders: Mapping[str, Path]) -> Mapping[str, str]:
        return {}


def completer_of(checkpoint: Path) -> Completer | None:
    """That of the family whose weights are in a folder; None: no family with one has such weights."""
    card = card_of_weights(checkpoint)
    return cast(Completer, _module(card.name, "completer")) if card else None


def pickle_converter(family: str) -> PickleConverter | None:
    """The family's; None: its releases have no pickles."""
    if not (_folder(family) / "pickle_converter.py").is_file():
        return None
    return cast(PickleConverter, _module(family, "pickle_converter"))


def repository_options(family: str) -> RepositoryOptions:
    """Those that the family brings along, else `PythonOptions`."""
    if not (_folder(family) / "repository.py").is_file():
        return PythonOptions()
    return cast(RepositoryOptions, _module(family, "repository"))


def _module(family: str, name: str) -> Any:
    return importlib.import_module(f"voice_clone_server.families.{_folder(family).name}.{name}")


def _folder(family: str) -> Path:
    return FOLDER / kind_of(family, [each.parent.name for each in FOLDER.glob("*/__init__.py")])
