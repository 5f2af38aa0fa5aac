"""Where and how precisely a stage computes, as the settings ask for it."""

from __future__ import annotations

import torch

from voice_clone.errors import InvalidArgument
from voice_clone.native.matrix.weights import PRECISIONS, Precision
from voice_clone.onnx.session import Runtime
from voice_clone.settings import Settings


def device(settings: Settings) -> str:
    """`cpu` or `cuda`."""
    kind = settings.choice("device", ("auto", "cpu", "cuda"))
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    return kind


def precision(settings: Settings) -> Precision:
    """Of the weights.

    Raises:
        InvalidArgument: the device does not know it.
    """
    cuda = device(settings) == "cuda"
    choices: dict[str, Precision] = {"auto": "bf16" if cuda else "fp32", **{name: name for name in PRECISIONS}}
    chosen = choices[settings.choice("precision", tuple(choices))]
    if chosen in ("int8", "int4") and cuda:
        raise InvalidArgument(f"precision {chosen} is for CPUs; a GPU takes fp32 or bf16")
    return chosen


def dtype(settings: Settings) -> torch.dtype:
    """In which torch computes. A CPU computes in fp32 at any precision; only how weights are stored differs there."""
    return torch.bfloat16 if device(settings) == "cuda" and precision(settings) == "bf16" else torch.float32


def use_threads(settings: Settings, share: int = 1) -> None:
    """Set the number of threads of this process for all engines; by default one `share`-th of its cores.

    The decoder takes half: the talker waits for memory most of the time, and both are at work at the same time.
    """
    torch.set_num_threads(settings.integer("threads", max(1, torch.get_num_threads() // share)))


def wants_graphs(settings: Settings) -> bool:
    """Whether steps run as CUDA graphs."""
    return settings.choice("cuda_graphs", ("true", "false")) == "true" and device(settings) == "cuda"


def prefill_chunk(settings: Settings) -> int:
    """Positions of a prompt that the talker reads between two steps; by default what takes about one step's time."""
    return settings.integer("prefill_chunk", 256 if device(settings) == "cuda" else 32)


def max_decode_batch(settings: Settings) -> int:
    """Chunks decoded together. A CPU gains little from a batch, and its first stream waits for its last."""
    return settings.integer("max_decode_batch", 32 if device(settings) == "cuda" else 4)


def encoder_engine(settings: Settings) -> str:
    """`torch`, `onnx` or `triton`."""
    return settings.choice("engine", ("torch", "onnx", "triton"))


def encoder_threads(settings: Settings) -> int:
    """Requests that an encoder works on at once; 0: one after the other, in its `execute`.

    A network that is a model of its own gets several to batch; one in this process serves one at a time.
    """
    return 8 if encoder_engine(settings) == "triton" else 0


def runtime(settings: Settings) -> Runtime:
    """ONNX Runtime as the settings ask for it."""
    return Runtime.of(settings, device(settings))
