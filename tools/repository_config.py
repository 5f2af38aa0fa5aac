"""The config.pbtxt of a built repository: filled in, written for native encoders, and checked as a server would."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from voice_clone.audio import ClipLimits

PLATFORMS = {"onnx": "onnxruntime_onnx", "tensorrt": "tensorrt_plan"}
PLAN = "model.plan"
WARM_UP_SECONDS = 3
MAX_BATCH = 4  # clips; of 30 s each, one activation of the released codec encoder takes 0.7 GB

_TYPES = {
    onnx.TensorProto.FLOAT: "TYPE_FP32",
    onnx.TensorProto.FLOAT16: "TYPE_FP16",
    onnx.TensorProto.INT32: "TYPE_INT32",
    onnx.TensorProto.INT64: "TYPE_INT64",
    onnx.TensorProto.BOOL: "TYPE_BOOL",
    onnx.TensorProto.STRING: "TYPE_STRING",
}


class BuildError(Exception):
    """The repository cannot be built, or would not load; the text says what is wrong."""


@dataclass(frozen=True)
class Network:
    """The network of an encoder as a model of its own, behind the Python model that checks, resamples and names.

    Attributes:
        encoder: the model in front.
        graph: name of the graph.
        sample_rate: Hz, of its waveform.
        output: its name, type and sizes without the batch.
    """

    encoder: str
    graph: str
    sample_rate: int
    output: tuple[str, str, tuple[int, ...]]

    @property
    def model(self) -> str:
        """Name of the model."""
        return f"{self.encoder}_network"

    def config(self, kind: str, provider: str, instances: int) -> str:
        """Its config.pbtxt, for a kind of `PLATFORMS`."""
        name, data_type, dims = self.output
        file = f"{self.graph}.onnx" if kind == "onnx" else PLAN
        parts = [
            f'name: "{self.model}"',
            f"# The network of {self.encoder}, which checks and resamples the clips that it sends here. In fp32.",
            f'platform: "{PLATFORMS[kind]}"',
            f'default_model_filename: "{file}"',
            f"max_batch_size: {MAX_BATCH}",
            "",
            'input [ { name: "waveform" data_type: TYPE_FP32 dims: [ -1 ] } ]',
            f'output [ {{ name: "{name}" data_type: {data_type} dims: [ {", ".join(map(str, dims))} ] }} ]',
            "",
            "# Triton puts clips of equal length alone into one batch, and these networks know no padding.",
            "dynamic_batching { }",
            _instance_group(instances, _instance_kind(kind, provider)),
            "",
            _warm_up([_zeros("waveform", WARM_UP_SECONDS * self.sample_rate)]),
        ]
        if kind == "onnx":
            parts.insert(-2, _accelerator(provider))
        return "\n".join(parts)

    def plan_command(self, folder: str) -> str:
        """What makes the TensorRT plan, to be run on the GPU that will serve it; `folder` is the model's there."""
        limits = ClipLimits()
        shapes = {
            "min": (1, round(limits.min_seconds * self.sample_rate)),
            "opt": (1, WARM_UP_SECONDS * self.sample_rate),
            "max": (MAX_BATCH, round(limits.max_seconds * self.sample_rate)),
        }
        options = [f"--{name}Shapes=waveform:{batch}x{samples}" for name, (batch, samples) in shapes.items()]
        files = f"--onnx={folder}/1/{self.graph}.onnx --saveEngine={folder}/1/{PLAN}"
        return " ".join(["trtexec --noTF32", files, *options])


def _instance_kind(kind: str, provider: str) -> str:
    if kind == "tensorrt" or provider in ("cuda", "tensorrt"):
        return "KIND_GPU"
    return "KIND_CPU" if provider == "cpu" else "KIND_AUTO"


def _accelerator(provider: str) -> str:
    if provider == "tensorrt":
        options = 'name: "tensorrt" parameters { key: "precision_mode" value: "FP32" }'
    else:  # with the ten bits of TF32 other codes come out; without effect on a CPU
        options = 'name: "cuda" parameters { key: "use_tf32" value: "0" }'
    return f"optimization {{ execution_accelerators {{ gpu_execution_accelerator [ {{ {options} }} ] }} }}"


def fill(text: str, parameters: Mapping[str, str], instances: int | None = None) -> str:
    """A config.pbtxt of this repository with values for its parameters and, if given, another number of instances."""
    for name, value in parameters.items():
        pattern = rf'^(parameters \{{ key: "{name}" value \{{ string_value: )"[^"\n]*"'
        quoted = json.dumps(value, ensure_ascii=False)
        text, found = re.subn(pattern, lambda match, to=quoted: f"{match[1]}{to}", text, flags=re.MULTILINE)  # type: ignore[misc]
        if found != 1:
            raise ValueError(f"no parameter {name}")
    if instances is not None:
        text, found = re.subn(r"^instance_group .*$", _instance_group(instances, "KIND_CPU"), text, flags=re.MULTILINE)
        if found != 1:
            raise ValueError("no instance_group")
    return text


def encoder_warm_up(sample_rate: int) -> str:
    """The warm-up of an encoder in Python; `write_warm_up_data` writes the file that it names."""
    rate = '{ key: "sample_rate" value { data_type: TYPE_INT32 dims: [ 1 ] input_data_file: "sample_rate" } }'
    return "\n" + _warm_up([_zeros("waveform", WARM_UP_SECONDS * sample_rate), rate])


def write_warm_up_data(model: Path, sample_rate: int) -> None:
    """The sample rate as Triton reads it, in the folder where it looks."""
    (model / "warmup").mkdir()
    (model / "warmup" / "sample_rate").write_bytes(sample_rate.to_bytes(4, "little"))


def _instance_group(count: int, kind: str) -> str:
    return f"instance_group [ {{ count: {count} kind: {kind} }} ]"


def _zeros(name: str, size: int) -> str:
    return f'{{ key: "{name}" value {{ data_type: TYPE_FP32 dims: [ {size} ] zero_data: true }} }}'


def _warm_up(inputs: Sequence[str]) -> str:
    # Without a batch_size, which counts for models without batches too, Triton leaves a warm-up out and says nothing.
    entries = [f'name: "{WARM_UP_SECONDS} s of silence"', "batch_size: 1", *(f"inputs {entry}" for entry in inputs)]
    return "model_warmup [\n  {\n" + "".join(f"    {entry}\n" for entry in entries) + "  }\n]\n"


def check_repository(folder: Path) -> None:
    """Every configuration is complete and fits what it configures.

    Raises:
        BuildError: names the model and what does not fit.
    """
    configs = {path.name: read(path / "config.pbtxt") for path in sorted(folder.iterdir())}
    for name, config in configs.items():
        if config.name != name or not config.input or not config.output:
            raise BuildError(f"{name}: config.pbtxt must have the folder's name, inputs and outputs")
        if config.platform == PLATFORMS["onnx"]:
            check_graph(config, folder / name / "1" / config.default_model_filename)
        if config.platform in PLATFORMS.values():
            check_contract(config, configs[name.removesuffix("_network")])


def read(file: Path) -> Any:
    """A config.pbtxt as Triton's message.

    Raises:
        BuildError: it is none.
    """
    try:
        return text_format.Parse(file.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise BuildError(f"{file.parent.name}: config.pbtxt cannot be read: {error}") from None


def check_graph(config: Any, file: Path) -> None:
    """A configuration fits the real inputs and outputs of its graph, by the rules of Triton's ONNX Runtime backend.

    Raises:
        BuildError: names the tensor, what the configuration says of it and what the graph has.
    """
    graph = onnx.load(file, load_external_data=False).graph
    weights = {each.name for each in graph.initializer}
    inputs = {each.name: each for each in graph.input if each.name not in weights}
    _check_tensors(config, "input", config.input, inputs, exact=False)
    _check_tensors(config, "output", config.output, {each.name: each for each in graph.output}, exact=True)
    if missing := sorted(set(inputs) - {each.name for each in config.input}):
        raise BuildError(f"{config.name}: the graph has the input {missing[0]}, config.pbtxt lacks it")


def _check_tensors(config: Any, what: str, entries: Any, tensors: Mapping[str, Any], *, exact: bool) -> None:
    for entry in entries:
        if entry.name not in tensors:
            there = ", ".join(tensors)
            raise BuildError(f"{config.name}: config.pbtxt has the {what} {entry.name}, the graph has {there}")
        tensor = tensors[entry.name].type.tensor_type
        given = model_config_pb2.DataType.Name(entry.data_type)
        found = _TYPES.get(tensor.elem_type, onnx.TensorProto.DataType.Name(tensor.elem_type))
        dims = [*([-1] if config.max_batch_size else []), *entry.dims]
        sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
        fits = len(dims) == len(sizes) and all(
            dim == size or (size == -1 and not exact) for dim, size in zip(dims, sizes, strict=True)
        )
        if given != found or not fits:
            raise BuildError(
                f"{config.name}: the {what} {entry.name} is {given} {dims} in config.pbtxt "
                f"(the batch comes first), and {found} {sizes} in the graph"
            )


def check_contract(network: Any, encoder: Any) -> None:
    """The tensors of a network are those of the model in front of it: same names, types and sizes.

    Raises:
        BuildError: names the tensor.
    """
    for ours, theirs in ((network.input, encoder.input), (network.output, encoder.output)):
        known = {each.name: each for each in theirs}
        for each in ours:
            other = known.get(each.name)
            if (
                other is None
                or (other.data_type, len(other.dims)) != (each.data_type, len(each.dims))
                or any(size not in (-1, own) for size, own in zip(other.dims, each.dims, strict=True))
            ):
                raise BuildError(f"{network.name}: {each.name} is not as {encoder.name} has it")
