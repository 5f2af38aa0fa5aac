"""Networks out of a checkpoint, on the device and in the precision that the settings ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from voice_clone import compute
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.errors import Unsupported
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.settings import CPU_PRECISIONS, EncoderSettings, Precision, PrecisionSettings

if TYPE_CHECKING:  # native code does without torch
    from torch import nn

N = TypeVar("N", bound="nn.Module")

UseNativeCode = Callable[[N, Precision, Callable[["nn.Module", str], None], PackedFile], object]
"""Replaces parts of a talker by native code, in place, and returns it; tables of embeddings stay, for a frame reads a
few of their rows. It gets the talker in fp32 on the CPU; the precision to which the weights of layers are rounded, and
those of heads not below int8; what fills a module, given its name below the talker, if the layers are on the meta
device yet; and what finds packed weights and keeps them. Parts are packed one after the other and freed."""


def empty(make: Callable[[], N]) -> N:
    """A network without weights, on the meta device."""
    import torch

    with torch.device("meta"):
        return make()


def load_encoder_network(
    settings: EncoderSettings, network: N, checkpoint: CheckpointFiles, file: str, prefix: str
) -> N:
    """Fill an empty network of a voice encoder; `file` and `prefix` as of `CheckpointFiles.load`.

    It computes in fp32 on any device, so that all find the same codes.
    """
    import torch

    checkpoint.load(network, file, prefix, torch.float32, torch.device(compute.device(settings)))
    return network.eval().requires_grad_(False)


class TalkerPart(NamedTuple):
    """A part of a talker whose tensors have a prefix of their own in the checkpoint.

    Attributes:
        place: of the part's names below the talker, with the dot; empty: it is the whole talker.
        prefix: of the same names in the file, with the dot.
        layers: how the names of its layers begin. Native code fills and packs them one by one, so that the talker is
            never in memory twice.
        in_file: tables that stay in the file, memory-mapped, because a prompt reads few of their rows.
        in_file_on_cpu: tables that do so on a CPU alone, because a frame reads few of their rows.
    """

    place: str
    prefix: str
    layers: tuple[str, ...]
    in_file: tuple[str, ...] = ()
    in_file_on_cpu: tuple[str, ...] = ()


def name_in_file(parts: Sequence[TalkerPart], name: str) -> str:
    """A tensor's or module's name behind its part's prefix, given that below the talker."""
    part = next(each for each in parts if name.startswith(each.place))
    return part.prefix + name.removeprefix(part.place)


def load_talker_network(
    settings: PrecisionSettings,
    talker: N,
    checkpoint: CheckpointFiles,
    file: str,
    parts: Sequence[TalkerPart],
    *,
    family: str,
    sizes: Any,
    use_native_code: UseNativeCode[N] | None = None,
) -> N:
    """Fill an empty talker: torch's modules on a GPU, native code in their place on a CPU if the family has it.

    Args:
        file: as of `CheckpointFiles.load`.
        sizes: a dataclass of all that shapes the talker's weights.
        use_native_code: None: the talker computes in torch on a CPU, too.

    Raises:
        Unsupported: the settings ask for int8 or int4 without `use_native_code`.
        CheckpointError: as of `CheckpointFiles.load`.
    """
    import torch

    dtype, precision = compute.dtype(settings), compute.precision(settings)
    device = torch.device(compute.device(settings))
    on_cpu, quantised = device.type == "cpu", precision in CPU_PRECISIONS
    if use_native_code is None and quantised:
        raise Unsupported(f"precision {precision}: this model computes in fp32 or bf16 alone")
    native = use_native_code if on_cpu else None
    packed = NOWHERE
    if native is not None:
        packed = compute.packed_file(settings, f"{family} talker {precision}", checkpoint.identity(file), sizes)
    for part in parts:
        network = talker.get_submodule(part.place.rstrip("."))
        in_file = (*part.in_file, *(part.in_file_on_cpu if on_cpu else ()))
        checkpoint.load(network, file, part.prefix, dtype, device, in_file, () if native is None else part.layers)
    talker.eval().requires_grad_(False)
    if native is None:
        return talker

    def load(module: nn.Module, name: str) -> None:
        prefix = f"{name_in_file(parts, name)}."
        checkpoint.load(module, file, prefix, None, device)  # in the file's type: packing converts it

    native(talker, precision, load, packed)
    return talker
