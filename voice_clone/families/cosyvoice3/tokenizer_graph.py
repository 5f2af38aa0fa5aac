"""The speech tokenizer in torch: the weights of the released ONNX file, found by the names of the nodes that use them.

The file is read as data; nothing in it is run. The names of the nodes are those that other programs look for in the
released file, above all `onnx2torch_v3` of s3tokenizer 0.3.0; most of its initializers have no meaningful names. This
does not prove that the network is the same. Comparing tokens does: see `encoder_stages.load_tokens`.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from voice_clone.errors import CheckpointError, Unsupported
from voice_clone.families.cosyvoice3.networks.speech_tokenizer import HEAD_DIM, SpeechTokenizer
from voice_clone.layers.graphs import to_device
from voice_clone.layers.mel import WHISPER_BANDS
from voice_clone.stages.loading import empty

ONNX = "1.20.1"  # the package's version in the tests
REMEDY = "with onnx_provider set to cpu ONNX Runtime computes it"
_USES = {
    (nn.Conv1d, "weight"): ("Conv", 0),
    (nn.Conv1d, "bias"): ("Conv", 1),
    (nn.Linear, "weight"): ("MatMul", 0),
    (nn.Linear, "bias"): ("Add", 0),
    (nn.LayerNorm, "weight"): ("Mul", 0),
    (nn.LayerNorm, "bias"): ("Add", 0),
}
"""By the class of a module and the name of its tensor: the operator that uses it, and where among its weights."""

_Weights = dict[tuple[str, str], list[NDArray[Any]]]
"""By the scope and the operator of a node: those of its inputs that are the file's, and more than one number."""

log = logging.getLogger(__name__)


class TorchGraph:
    """The network in the place of the `voice_clone.onnx.session.ReleasedGraph` of its file, on another device.

    Args:
        file: the released one.
        device: where it computes, in fp32.

    Raises:
        CheckpointError: the file has not the weights of such a network.
        Unsupported: the package onnx is not installed.
    """

    def __init__(self, file: Path, device: torch.device) -> None:
        self.file = file.name
        self._device = device
        self._network = load_network(file).to(device)
        log.info("%s in torch on %s", self.file, device)

    @torch.inference_mode()
    def run(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """The tokens int32 [1, T] of frames float32 [1, 128, n] and their number int32 [1]."""
        tokens: Tensor = self._network(*(to_device(torch.from_numpy(each), self._device) for each in arrays))
        return tokens.cpu().numpy()


def load_network(file: Path) -> SpeechTokenizer:
    """The network of a file, on the CPU. Raises as of `TorchGraph`."""
    try:
        import onnx
    except ImportError:
        raise Unsupported(f"to compute {file.name} in torch install onnx=={ONNX}; {REMEDY}") from None
    try:
        graph = onnx.load(file).graph
        values = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    except Exception as error:  # of protobuf, numpy and onnx, without a common base
        log.error("%s could not be read", file.name, exc_info=error)
        raise CheckpointError(f"{file.name}: its weights cannot be read; {REMEDY}") from None
    weights = _weights(graph.node, values)
    first = weights.get(("/conv1", "Conv"), [])
    layers = sum(operator == "MatMul" and scope.endswith("/attn/query") for scope, operator in weights)
    if not first or first[0].shape[1:] != (WHISPER_BANDS, 3) or len(first[0]) % HEAD_DIM:
        raise CheckpointError(f"{file.name}: no node /conv1/Conv with the weights of a speech tokenizer; {REMEDY}")
    network = empty(lambda: SpeechTokenizer(len(first[0]), layers)).eval()
    network.load_state_dict({name: _tensor(network, name, weights, file) for name in network.state_dict()}, assign=True)
    return network.requires_grad_(False)


def _weights(nodes: Any, values: dict[str, NDArray[Any]]) -> _Weights:
    found: _Weights = {}
    for node in nodes:
        arrays = [values[name] for name in node.input if name in values and values[name].size > 1]
        if arrays:
            found[node.name.rpartition("/")[0], node.op_type] = arrays
    return found


def _tensor(network: SpeechTokenizer, name: str, weights: _Weights, file: Path) -> Tensor:
    path, _, kind = name.rpartition(".")
    module = network.get_submodule(path)
    operator, place = _USES[type(module), kind]
    # As torch's exporter names nodes: a member of a list by one part, a member of a Sequential by two.
    scope = "/" + re.sub(r"\.(?!\d)", "/", path).replace("/mlp.", "/mlp/mlp.")
    arrays = weights.get((scope, operator), [])[place:]
    array = arrays[0] if arrays else np.zeros(0, np.float32)
    if isinstance(module, nn.Linear) and kind == "weight":
        array = array.T
    expected = tuple(network.get_parameter(name).shape)
    if array.shape != expected or array.dtype != np.float32:
        raise CheckpointError(
            f"{file.name}: the {kind} of {scope}/{operator} is {array.dtype} {list(array.shape)}, "
            f"expected float32 {list(expected)}; {REMEDY}"
        )
    return torch.from_numpy(array.copy())
