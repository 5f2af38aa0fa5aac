"""What an ONNX graph is made from, and where it lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

FINGERPRINT, VERSION = "voice_clone.fingerprint", "voice_clone.version"  # keys of a graph's metadata

Axes = dict[str, dict[int, str]]


@dataclass(frozen=True)
class Graph:
    """A graph to be: the module to trace, example inputs, the names of all tensors, and which of their axes vary."""

    name: str
    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: Axes


def graph_file(folder: Path, name: str) -> Path:
    """The file of a graph."""
    return folder / f"{name}.onnx"
