"""Writes a network as an ONNX graph, which Triton's own backends run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

import voice_clone
from voice_clone.onnx.session import graph_file

OPSET = 18  # the ONNX Runtime 1.19.2 of NGC's 24.10 image, the oldest, takes up to 21, its TensorRT parser up to 20


@dataclass(frozen=True)
class Graph:
    """What `export` needs to write a graph.

    Attributes:
        name: of the graph and its file.
        module: the module to trace.
        example: inputs of the module; sizes of variable axes are arbitrary.
        inputs, outputs: the names of the tensors.
        axes: for each tensor the axes of variable size and their names.
    """

    name: str
    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: dict[str, dict[int, str]]


def export(graph: Graph, folder: Path) -> Path:
    """Trace a graph, check it, and write it. An older file of its name is replaced after the new one is complete.

    Args:
        graph: on the CPU, in float32.
        folder: where the file goes; it must exist.

    Returns:
        The file.

    Raises:
        onnx.checker.ValidationError, onnx.shape_inference.InferenceError: the graph is not valid ONNX.
    """
    with TemporaryDirectory(prefix=f".{graph.name}-", dir=folder) as scratch:
        written = graph_file(Path(scratch), graph.name)
        _trace(graph, written)
        model = onnx.load(written)
        _declare_outputs(model, graph)
        model.producer_name, model.producer_version = "voice-clone", voice_clone.__version__
        onnx.save_model(model, written)
        onnx.checker.check_model(str(written), full_check=True)  # also compares the shapes with inferred ones
        return written.replace(graph_file(folder, graph.name))


def _trace(graph: Graph, file: Path) -> None:
    """Export a graph by tracing, which takes seconds; the newer exporter takes a minute.

    If a module reads a size as a Python number, tracing writes the example's size as a constant. Comparisons with torch
    at other sizes reveal that.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the tracing exporter
        warnings.simplefilter("ignore", TracerWarning)
        warnings.filterwarnings("ignore", "Constant folding", UserWarning)
        torch.onnx.export(
            graph.module.eval(),
            graph.example,
            str(file),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_axes=graph.axes,
        )


def _declare_outputs(model: onnx.ModelProto, graph: Graph) -> None:
    """Declare the fixed sizes of the outputs, of which tracing finds only some."""
    with torch.no_grad():
        results = graph.module(*graph.example)
    results = (results,) if isinstance(results, Tensor) else results
    for value, result in zip(model.graph.output, results, strict=True):
        for axis, size in enumerate(result.shape):
            if axis not in graph.axes[value.name]:
                value.type.tensor_type.shape.dim[axis].dim_value = size
