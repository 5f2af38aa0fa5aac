"""The description of an ONNX graph, and the name of its file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

FINGERPRINT, VERSION = "voice_clone.fingerprint", "voice_clone.version"  # keys of a graph's metadata

Axes = dict[str, dict[int, str]]
"""For each tensor: the axes of variable size and their names."""


@dataclass(frozen=True)
class Graph:
    """What `export` needs to write a graph.

    Attributes:
        name: of the graph and its file.
        module: the module to trace.
        example: inputs of the module; sizes of variable axes are arbitrary.
        inputs, outputs: the names of the tensors.
        axes: which axes of which tensors have a variable size.
    """

    name: str
    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: Axes


def graph_file(folder: Path, name: str) -> Path:
    """The file of a graph in a folder of graphs."""
    return folder / f"{name}.onnx"
