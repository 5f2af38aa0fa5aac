"""Configurations of a built repository: encoders' networks as models, warm-ups, and the checks that a server makes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from voice_clone.audio import MAX_PEAK, ClipLimits
from voice_clone_server.config_file import ConfigError, ConfigFile, model_config_pb2
from voice_clone_server.families.operating import EncoderGraph

PLATFORMS = {"onnx": "onnxruntime_onnx", "tensorrt": "tensorrt_plan"}
PLAN = "model.plan"
WARM_UP_SECONDS = 3
MAX_BATCH = 4  # clips; of 30 s each, one activation of the released codec encoder takes 0.7 GB

_CHECK = '''"""Refuses clips that no network takes."""

from voice_clone.triton.stages.clip_check import ClipCheckModel


class TritonPythonModel(ClipCheckModel):
    """The model that Triton loads."""
'''
_INT64 = onnx.TensorProto.INT64
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
    """The network of an encoder as a graph that Triton runs. A Python model in front checks and resamples the clip,
    calls the graph and names its outputs. An ensemble with the same check of the clip serves those who call only the
    network.

    Attributes:
        family: the encoder's family.
        front: the model in front.
        encoder: the network.
    """

    family: str
    front: str
    encoder: EncoderGraph

    @property
    def model(self) -> str:
        """Name of the graph's model."""
        return f"{self.family}_{self.encoder.graph}_graph"

    @property
    def check(self) -> str:
        """Name of the model that checks the clips; one for all networks of a front."""
        return f"{self.family}_clip_check"

    @property
    def checked(self) -> ConfigFile:
        """The config.pbtxt of the network for those who call it alone."""
        file = ConfigFile(
            f"# The network of {self.front} for callers of its own. What that refuses is refused here, too.\n"
            f'name: "{self.family}_{self.encoder.graph}_network"\n'
            'platform: "ensemble"\n'
        )
        self._give_tensors(file.message)
        name = self.encoder.output[0]
        first = file.message.ensemble_scheduling.step.add(model_name=self.check, model_version=-1)
        first.input_map["waveform"], first.output_map["waveform"] = "waveform", "checked"
        then = file.message.ensemble_scheduling.step.add(model_name=self.model, model_version=-1)
        then.input_map["waveform"], then.output_map[name] = "checked", name
        return file

    def write_check(self, folder: Path) -> None:
        """Write the model that checks the clips to a repository."""
        file = ConfigFile(
            f"# Refuses the clips that {self.front} refuses, before a network that is called alone computes.\n"
            f'name: "{self.check}"\n'
            'backend: "python"\n'
            f"max_batch_size: {MAX_BATCH}\n"
            'input [ { name: "waveform" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
            'output [ { name: "waveform" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
            "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
        )
        file.message.parameters["sample_rate"].string_value = str(self.encoder.sample_rate)
        code = folder / self.check / "1" / "model.py"
        code.parent.mkdir(parents=True)
        code.write_text(_CHECK, encoding="utf-8")
        file.write(folder / self.check)

    def _give_tensors(self, config: Any) -> None:
        name, data_type, dims = self.encoder.output
        config.max_batch_size = MAX_BATCH
        config.input.add(name="waveform", data_type="TYPE_FP32", dims=[-1])
        config.output.add(name=name, data_type=data_type, dims=dims)

    def config(self, kind: str, provider: str, instances: int, threads: int | None = None) -> ConfigFile:
        """The graph's config.pbtxt, for a kind of `PLATFORMS`; without `threads` each instance takes all cores."""
        file = ConfigFile(
            f"# The network of {self.front}, which checks and resamples the clips that it sends here. In fp32.\n"
            f"# For other callers there is {self.family}_{self.encoder.graph}_network, which checks them, too.\n"
            f'name: "{self.model}"\n'
            "# Triton puts only clips of equal length into one batch, and these networks know no padding.\n"
            "dynamic_batching { }\n"
        )
        config = file.message
        config.platform = PLATFORMS[kind]
        config.default_model_filename = f"{self.encoder.graph}.onnx" if kind == "onnx" else PLAN
        self._give_tensors(config)
        config.instance_group.add(count=instances, kind=_instance_kind(kind, provider))
        _warm_up(config, self.encoder.sample_rate)
        if kind == "onnx":
            _accelerate(config, provider)
            if threads is not None:
                config.parameters["intra_op_thread_count"].string_value = str(threads)
        return file

    def refuse(self, file: Path, limits: ClipLimits) -> None:
        """Let the ONNX graph take only clips that the model in front takes, no matter who calls it.

        A wrong length is an error. Wrong samples get codes of -1 or an embedding of NaN, because an error would also
        hit the clips of others in the same batch.
        """
        rate, (name, _, dims) = self.encoder.sample_rate, self.encoder.output
        model = onnx.load(file, load_external_data=False)
        _blank_wrong_samples(model.graph, name, len(dims))
        most = math.floor(limits.max_seconds * rate) + 1  # the resampler in front rounds up
        _refuse_lengths(model.graph, math.ceil(limits.min_seconds * rate), most)
        onnx.save(model, file)
        onnx.checker.check_model(str(file), full_check=True)

    def plan_command(self, folder: str, limits: ClipLimits) -> str:
        """Return the command that makes the TensorRT plan. It must run on the GPU that will serve it; `folder` is the
        model's there.
        """
        rate = self.encoder.sample_rate
        shapes = {
            "min": (1, round(limits.min_seconds * rate)),
            "opt": (1, WARM_UP_SECONDS * rate),
            "max": (MAX_BATCH, round(limits.max_seconds * rate)),
        }
        options = [f"--{name}Shapes=waveform:{batch}x{samples}" for name, (batch, samples) in shapes.items()]
        files = f"--onnx={folder}/1/{self.encoder.graph}.onnx --saveEngine={folder}/1/{PLAN}"
        return " ".join(["trtexec --noTF32", files, *options])


def _refuse_lengths(graph: Any, least: int, most: int) -> None:
    """Put a reshape in front that fails for fewer or more samples. The runtime's error names the node."""
    for node in graph.node:
        node.input[:] = ["right.waveform" if each == "waveform" else each for each in node.input]
    limits = {"right.least": least, "right.most": most}
    graph.initializer.extend(helper.make_tensor(name, _INT64, [], [value]) for name, value in limits.items())
    words = f"invalid_argument: the waveform must have {least} to {most} samples"
    front = (
        helper.make_node("Shape", ["waveform"], ["right.batch"], end=1),
        helper.make_node("Shape", ["waveform"], ["right.samples"], start=1),
        helper.make_node("Clip", ["right.samples", *limits], ["right.length"]),
        helper.make_node("Concat", ["right.batch", "right.length"], ["right.shape"], axis=0),
        helper.make_node("Reshape", ["waveform", "right.shape"], ["right.waveform"], name=words),
    )
    for node in reversed(front):
        graph.node.insert(0, node)


def _blank_wrong_samples(graph: Any, output: str, rank: int) -> None:
    """Give a waveform with NaN, infinity or samples of another scale an output of NaN, or of no valid code."""
    [wanted] = [each for each in graph.output if each.name == output]
    kind = wanted.type.tensor_type.elem_type
    for node in graph.node:
        node.output[:] = ["any.output" if each == output else each for each in node.output]
    nothing = float("nan") if kind == onnx.TensorProto.FLOAT else -1
    graph.initializer.extend(
        (
            helper.make_tensor("any.axes", _INT64, [1], [1]),
            helper.make_tensor("any.zero", onnx.TensorProto.FLOAT, [], [0.0]),
            helper.make_tensor("any.loudest", onnx.TensorProto.FLOAT, [], [MAX_PEAK]),
            helper.make_tensor("any.further", _INT64, [rank - 1], range(2, rank + 1)),
            helper.make_tensor("any.nothing", kind, [], [nothing]),
        )
    )
    graph.node.extend(
        (
            helper.make_node("Sub", ["waveform", "waveform"], ["any.zeros"]),  # NaN where a sample is not finite
            helper.make_node("ReduceSum", ["any.zeros", "any.axes"], ["any.sum"]),
            helper.make_node("Equal", ["any.sum", "any.zero"], ["any.finite"]),
            helper.make_node("Abs", ["waveform"], ["any.sizes"]),
            helper.make_node("ReduceMax", ["any.sizes", "any.axes"], ["any.peak"]),
            helper.make_node("LessOrEqual", ["any.peak", "any.loudest"], ["any.soft"]),
            helper.make_node("And", ["any.finite", "any.soft"], ["any.flat"]),
            helper.make_node("Unsqueeze", ["any.flat", "any.further"], ["any.right"]),
            helper.make_node("Where", ["any.right", "any.output", "any.nothing"], [output]),
        )
    )


def _instance_kind(kind: str, provider: str) -> str:
    if kind == "tensorrt" or provider in ("cuda", "tensorrt"):
        return "KIND_GPU"
    return "KIND_CPU" if provider == "cpu" else "KIND_AUTO"


def _accelerate(config: Any, provider: str) -> None:
    accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator.add()
    if provider == "tensorrt":
        accelerator.name = "tensorrt"
        accelerator.parameters["precision_mode"] = "FP32"
    else:  # TF32 has ten bits and gives other codes; without effect on a CPU
        accelerator.name = "cuda"
        accelerator.parameters["use_tf32"] = "0"
        # 1: heuristic; the default searches exhaustively for every new length of a clip. Among the accelerator's own
        # parameters it would be overwritten by this one's default.
        config.parameters["cudnn_conv_algo_search"].string_value = "1"


def _warm_up(config: Any, sample_rate: int) -> Any:
    """Silence as the input `waveform`; returns the entry, for further inputs."""
    # Triton silently leaves out a warm-up without a batch_size, also in models without batches.
    entry = config.model_warmup.add(name=f"{WARM_UP_SECONDS} s of silence", batch_size=1)
    waveform = entry.inputs["waveform"]
    waveform.data_type = model_config_pb2.TYPE_FP32
    waveform.dims.append(WARM_UP_SECONDS * sample_rate)
    waveform.zero_data = True
    return entry


def prepare_encoder(config: Any, model: Path, sample_rate: int, instances: int) -> None:
    """Set the instances of an encoder in Python, and a warm-up, whose data go into the model's folder.

    Raises:
        ValueError: it has not exactly one instance_group.
    """
    [group] = config.instance_group
    group.count = instances
    rate = _warm_up(config, sample_rate).inputs["sample_rate"]
    rate.data_type = model_config_pb2.TYPE_INT32
    rate.dims.append(1)
    rate.input_data_file = "sample_rate"
    (model / "warmup").mkdir()
    (model / "warmup" / "sample_rate").write_bytes(sample_rate.to_bytes(4, "little"))


def check_repository(folder: Path) -> None:
    """Check that every configuration is complete and fits what it configures.

    Raises:
        BuildError: names the model and what does not fit.
    """
    configs = {path.name: read(path) for path in sorted(folder.iterdir())}
    for name, config in configs.items():
        if config.name != name or not config.input or not config.output:
            raise BuildError(f"{name}: config.pbtxt must have the folder's name, inputs and outputs")
        if config.platform == PLATFORMS["onnx"]:
            check_graph(config, folder / name / "1" / config.default_model_filename)
        if config.platform in PLATFORMS.values():
            [front] = [each for each in configs.values() if _is_front(each)]
            check_contract(config, front)


def read(model: Path) -> Any:
    """The message of a model's config.pbtxt.

    Raises:
        BuildError: it cannot be read.
    """
    try:
        return ConfigFile.read(model).message
    except ConfigError as error:
        raise BuildError(str(error)) from None


def _is_front(config: Any) -> bool:
    return "network_fingerprint" in config.parameters and config.parameters["network_fingerprint"].string_value != ""


def check_graph(config: Any, file: Path) -> None:
    """Check that a configuration fits the inputs and outputs of its graph, by the rules of Triton's ONNX Runtime
    backend.

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
    """Check that the model in front of a network has all tensors of the network, with the same names, types and sizes.

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
