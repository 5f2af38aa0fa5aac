"""Where and how precisely a stage computes, by its settings."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.gpu import has_driver
from voice_clone.native.cache_folder import PACKAGE, compiler, digest_of, processor_digest, writable_folder
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.native.thread_pool import computing_threads, use_threads
from voice_clone.settings import (
    CPU_PRECISIONS,
    PRECISIONS,
    ComputeSettings,
    DecoderSettings,
    EncoderSettings,
    PackingSettings,
    Precision,
    PrecisionSettings,
    StreamSettings,
    TalkerSettings,
)

if TYPE_CHECKING:  # a stage that computes without torch does not import it
    import torch

NO_GPU = (
    "torch %s finds no GPU to use; the driver must be as new as that CUDA (580 or newer for CUDA 13), "
    "and a container needs --gpus"
)

_NO_WEIGHTS = ("aligner", "batching", "marking", "onnx", "speakers", "triton", "__pycache__")
"""Packages that make no weights."""

log = logging.getLogger(__name__)


def device(settings: ComputeSettings) -> str:
    """`cpu` or `cuda`."""
    if settings.device == "auto":
        return "cuda" if _finds_gpu() else "cpu"
    return settings.device


def _finds_gpu() -> bool:
    """Whether torch finds a GPU. It is not imported where it would find none."""
    if "torch" not in sys.modules and not has_driver():
        return False
    import torch

    return torch.cuda.is_available()


def precision(settings: PrecisionSettings) -> Precision:
    """Of a network's weights; by default fp32 on a CPU and bf16 on a GPU.

    Raises:
        InvalidArgument: the device does not know it.
    """
    cuda = device(settings) == "cuda"
    choices: dict[str, Precision] = {"auto": "bf16" if cuda else "fp32", **{name: name for name in PRECISIONS}}
    chosen = choices[settings.precision]
    if chosen in CPU_PRECISIONS and cuda:
        raise InvalidArgument(f"precision {chosen} is for CPUs; a GPU takes fp32 or bf16")
    return chosen


def dtype(settings: PrecisionSettings) -> torch.dtype:
    """In which such a network computes in torch. A CPU computes in fp32; only how weights are stored differs there."""
    import torch

    return torch.bfloat16 if device(settings) == "cuda" and precision(settings) == "bf16" else torch.float32


def decoder_precision(settings: DecoderSettings) -> str:
    """Of a codec's decoder: fp32, tf32 (fp32 whose products round their factors to ten bits) or bf16.

    By default tf32, in which torch computes convolutions by its own default, and so the official packages. A CPU
    computes in fp32 whatever the setting is.

    Raises:
        InvalidArgument: a GPU does not know it.
    """
    if device(settings) == "cpu":
        return "fp32"
    if settings.precision == "auto":
        return "tf32"
    if settings.precision in CPU_PRECISIONS:
        raise InvalidArgument(
            f"precision {settings.precision} is for CPUs; the decoder on a GPU takes fp32, tf32 or bf16"
        )
    return settings.precision


def decoder_dtype(settings: DecoderSettings) -> torch.dtype:
    """In which a codec's decoder computes in torch."""
    import torch

    return torch.bfloat16 if decoder_precision(settings) == "bf16" else torch.float32


def prepare(settings: ComputeSettings, share: int = 1, tf32: bool = False, remote: bool = False) -> None:
    """Set this process up, before anything is loaded: threads and GPU. The log says where the model computes.

    The number of threads is that of all engines; by default one `share`-th of the cores. The decoder takes half: the
    talker waits for memory most of the time, and both are at work at the same time. `tf32`: products in fp32 may round
    their factors. `remote`: another process computes the network.

    Raises:
        Unsupported: the setting is cuda, and there is no GPU that torch can use.
    """
    use_threads(settings.threads or max(1, computing_threads() // share))
    if device(settings) == "cuda":
        if not remote:
            _use_gpu(tf32)
        return
    torch = sys.modules.get("torch")
    if settings.device != "cpu" and torch is not None and torch.version.cuda is not None:
        log.warning("computes on the CPU: %s", NO_GPU % _build())
    log.info("computes on the CPU, threads: %d", computing_threads())


def _use_gpu(tf32: bool) -> None:
    import torch

    if not torch.cuda.is_available():
        raise Unsupported(f"the setting device is cuda, and {NO_GPU % _build()}")
    # fp32 means fp32: with the ten bits of TF32 the encoders find other codes than on a CPU.
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    # cuDNN plans its attention again for each shape in each thread, which takes tens of milliseconds.
    torch.backends.cuda.enable_cudnn_sdp(False)
    free, total = torch.cuda.mem_get_info()
    log.info(
        "computes on %s, %.1f of %.1f GB free, torch %s",
        torch.cuda.get_device_name(),
        free / 1e9,
        total / 1e9,
        _build(),
    )


def _build() -> str:
    """What torch was built for."""
    import torch

    return f"{torch.__version__} for {'no GPU' if torch.version.cuda is None else f'CUDA {torch.version.cuda}'}"


def wants_graphs(settings: StreamSettings) -> bool:
    """Whether steps run as CUDA graphs."""
    return settings.cuda_graphs and device(settings) == "cuda"


def prefill_chunk(settings: TalkerSettings) -> int:
    """Positions of a prompt that the talker reads between two steps; by default what takes about one step's time."""
    return settings.prefill_chunk or (256 if device(settings) == "cuda" else 32)


def max_decode_batch(settings: DecoderSettings) -> int:
    """Chunks decoded together. A CPU gains little from a batch, and its first stream waits for its last."""
    return settings.max_decode_batch or (32 if device(settings) == "cuda" else 4)


def packed_file(
    settings: PackingSettings, network: str, identity: list[Any], config: Any, any_size: bool = False
) -> PackedFile:
    """Where the packed weights of a network, or other arrays, are kept for the next start, beside the compiled code.

    The key has all that shapes them: the checkpoint, the code that can have a part in it, and the processor. What is
    made in torch does not depend on its version beyond the last bit. The key has the compiler's: where weights are
    found, the code that computes with them is compiled.

    Args:
        network: the family's name, which begins it, and its own, with the precision if there are several.
        identity: of the checkpoint's files; see `CheckpointFiles.identity`. Taken before they are read. Empty: of none.
        config: the network's, a dataclass.
        any_size: as of `PackedFile`.
    """
    most = round(settings.packed_bytes)
    if most == 0 or device(settings) != "cpu":
        return NOWHERE

    key = {
        "network": network,
        "files": identity,
        "config": asdict(config),
        "sources": _sources(network.partition(" ")[0]),
        "packages": compiler(),
        "processor": processor_digest(),
    }
    return PackedFile(writable_folder("packed"), key, most, any_size)


def _sources(family: str) -> str:
    """A digest of the code that makes packed weights. The families know nothing of each other."""
    others = (each.name for each in os.scandir(PACKAGE / "families") if each.name != family)
    return digest_of(PACKAGE, frozenset((*others, *_NO_WEIGHTS)))


def encoder_threads(settings: EncoderSettings) -> int:
    """Requests that an encoder works on at once; 0: one after the other, in its `execute`.

    A network that is a model of its own gets several to batch; one in this process serves one at a time.
    """
    return 8 if settings.network_fingerprint else 0
