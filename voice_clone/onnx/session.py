"""An ONNX graph: its file, and its run on ONNX Runtime.

It runs on the execution provider of the settings and on no other.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import CheckpointError, Internal, Unsupported


def graph_file(folder: Path, name: str) -> Path:
    """The file of a graph in a folder of graphs."""
    return folder / f"{name}.onnx"


ONNX_RUNTIME = "1.19.2"  # that of the tests. An image has that of its release of Triton: tools/triton_releases.py
OLDEST, NEWEST = (1, 19), (1, 28)  # minor versions of these releases
PROVIDERS = {
    "cpu": ["CPUExecutionProvider"],
    "cuda": ["CUDAExecutionProvider"],
    "tensorrt": ["TensorrtExecutionProvider", "CUDAExecutionProvider"],  # CUDA runs what TensorRT cannot
}
_REMEDY = "download the checkpoint again"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Runtime:
    """Where the graphs are and how they run.

    Args:
        folder: the folder of the graphs.
        provider: a key of `PROVIDERS`.
        threads: how many threads a graph runs on, on the CPU.
    """

    folder: Path
    provider: str
    threads: int


class ReleasedGraph:
    """A graph as others released it: inputs of any names, in a known order, and one output that counts, the first.

    Only one thread at a time may run it. Arrays are those of the host, whatever the provider.

    Args:
        runtime: where the graph is and how it runs.
        name: the name of the graph.
        inputs: of each its ONNX type and its number of dimensions.

    Raises:
        CheckpointError: the graph is missing or broken, or takes other inputs.
        Unsupported: ONNX Runtime is not installed in one of the right versions, or does not have the provider.
    """

    def __init__(self, runtime: Runtime, name: str, inputs: Sequence[tuple[str, int]]) -> None:
        self.file = graph_file(runtime.folder, name).name
        self._session = _open(runtime, name)
        found = [(each.type, len(each.shape)) for each in self._session.get_inputs()]
        if found != list(inputs):
            raise CheckpointError(f"{self.file}: takes {_described(found)}, expected {_described(inputs)}")
        self._names = [each.name for each in self._session.get_inputs()]
        self._output = self._session.get_outputs()[0].name

    def run(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """The first output for all inputs, in their order.

        Raises:
            Internal: the graph cannot compute it.
        """
        try:
            [result] = self._session.run([self._output], dict(zip(self._names, arrays, strict=True)))
        except Exception as error:  # ONNX Runtime has an exception class for each error code, without a common base
            log.error("%s could not be run", self.file, exc_info=error)
            raise Internal(f"{self.file}: the graph could not be computed") from None
        return np.asarray(result)


def has_provider(name: str) -> bool:
    """Whether this ONNX Runtime was built with a provider, a key of `PROVIDERS`."""
    return PROVIDERS[name][0] in _onnx_runtime().get_available_providers()


def _open(runtime: Runtime, name: str) -> Any:
    """An `onnxruntime.InferenceSession`.

    Raises:
        CheckpointError: the graph is missing or broken.
        Unsupported: as of `ReleasedGraph`.
    """
    ort = _onnx_runtime()
    _check_provider(runtime.provider, ort.get_available_providers(), "which this ONNX Runtime does not have")
    file = graph_file(runtime.folder, name)
    if not file.is_file():
        raise CheckpointError(f"{file.name}: the graph is missing; {_REMEDY}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = runtime.threads
    # Each model is a process, and all share the cores: a spinning thread would take a core from another process.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    providers = [(name, provider_options(name, runtime.folder)) for name in PROVIDERS[runtime.provider]]
    if runtime.provider == "tensorrt":  # it has no option that forbids TF32, whose mantissa has ten bits
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    try:
        session = ort.InferenceSession(str(file), options, providers=providers)
    except Exception as error:  # ONNX Runtime has an exception class for each error code, without a common base
        log.error("%s could not be opened", file.name, exc_info=error)
        raise CheckpointError(f"{file.name}: ONNX Runtime cannot open the graph; {_REMEDY}") from None
    session.disable_fallback()
    # If a provider is built in but cannot start, ONNX Runtime only warns and continues without it.
    _check_provider(runtime.provider, session.get_providers(), "which wants a GPU and its libraries")
    log.info(
        "%s on ONNX Runtime %s: %s, threads: %d",
        file.name,
        ort.__version__,
        " before ".join(session.get_providers()),
        runtime.threads,
    )
    return session


def _described(inputs: Sequence[tuple[str, int]]) -> str:
    return " and ".join(f"{kind} of {rank} dimensions" for kind, rank in inputs) or "nothing"


def _onnx_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        found = "not installed"
    else:
        found = onnxruntime.__version__
        if OLDEST <= tuple(map(int, found.split(".")[:2])) <= NEWEST:
            return onnxruntime
    oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
    raise Unsupported(
        f"onnxruntime is {found}; it must be {oldest} to {newest}: "
        f"install onnxruntime=={ONNX_RUNTIME}, or onnxruntime-gpu=={ONNX_RUNTIME}, or that of your release of Triton"
    )


def _check_provider(name: str, available: list[str], reason: str) -> None:
    if PROVIDERS[name][0] not in available:
        present = [key for key, providers in PROVIDERS.items() if providers[0] in available]
        raise Unsupported(f"onnx_provider is {name}, {reason}; it has {', '.join(present)}")


def provider_options(provider: str, folder: Path) -> dict[str, Any]:
    """The options with which ONNX Runtime gets a provider; `folder` is that of the graphs."""
    if provider == "TensorrtExecutionProvider":  # building an engine takes minutes, so it is cached beside the graphs
        return {"trt_engine_cache_enable": True, "trt_engine_cache_path": str(folder / "tensorrt")}
    if provider == "CUDAExecutionProvider":  # with TF32, whose mantissa has ten bits, other codes are drawn
        # An exhaustive search, the default, takes place for every new length of a clip.
        return {"use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"}
    return {}
