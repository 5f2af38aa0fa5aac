"""Writes a network as an ONNX graph, which `session` and other runtimes can run."""

from __future__ import annotations

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import torch
from torch import Tensor
from torch.jit._trace import TracerWarning

import voice_clone
from voice_clone.onnx.session import FINGERPRINT, VERSION, Graph, graph_file

OPSET = 18  # the ONNX Runtime 1.19.2 of NGC's 24.10 image, the oldest, takes up to 21, its TensorRT parser up to 20
PROTOBUF_LIMIT = (2 << 30) - (1 << 20)  # bytes; a larger graph stores its weights in a second file


def export(graph: Graph, folder: Path, fingerprint: str, external_over: int = PROTOBUF_LIMIT) -> Path:
    """Trace a graph, check it, and write it. An older file of its name is replaced after the new one is complete.

    Args:
        graph: on the CPU, in float32.
        folder: where the file goes; it must exist.
        fingerprint: identifies the part of the checkpoint that the weights come from.
        external_over: if the graph has more bytes, its weights go to `<name>.onnx.data`.

    Returns:
        The file.

    Raises:
        onnx.checker.ValidationError, onnx.shape_inference.InferenceError: the graph is not valid ONNX.
    """
    with TemporaryDirectory(prefix=f".{graph.name}-", dir=folder) as scratch:
        traced = Path(scratch) / "traced.onnx"
        _trace(graph, traced)
        model = onnx.load(traced)
        _declare_outputs(model, graph)
        metadata = {FINGERPRINT: fingerprint, VERSION: voice_clone.__version__}
        onnx.helper.set_model_props(model, metadata)
        model.producer_name, model.producer_version = "voice-clone", voice_clone.__version__
        written = graph_file(Path(scratch), graph.name)
        data = f"{written.name}.data"
        onnx.save_model(model, written, save_as_external_data=model.ByteSize() > external_over, location=data)
        onnx.checker.check_model(str(written), full_check=True)  # also compares the shapes with inferred ones
        if (written.parent / data).exists():  # moved before the graph, which refers to it
            (written.parent / data).replace(folder / data)
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
