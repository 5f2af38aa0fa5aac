"""Native code in place of a talker's modules, on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from voice_clone.autoregressive.native_predictor import Load, layer_loader
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.families.voxtral.networks.flow_head import FlowLayer
from voice_clone.families.voxtral.networks.talker import Talker
from voice_clone.native.matrix.linear import NativeLinear
from voice_clone.native.matrix.weights import Array, Packed, Precision, head_precision, pack
from voice_clone.native.packed_file import NOWHERE, PackedFile, Part

OTHERS = ("semantic_codebook_output", "llm_projection", "input_projection", "acoustic_codebook_output")


def use_native_code(
    talker: Talker, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
) -> Talker:
    """Replace the layers and projections of a talker by native code; returns it.

    The tables of embeddings stay as they are, for a frame reads a few of their rows.

    Args:
        talker: in fp32, on the CPU. Its layers are packed one after the other and freed.
        precision: to which the weights of all layers are rounded; those of the head's other projections not below int8.
        load: fills a module, given its name below the talker; for the layers, if they are not loaded yet.
        packed: finds the packed layers and keeps them.
    """
    flow = talker.flow
    flow.times()  # while its projection is there
    del flow.time_projection
    talker.native_stack = NativeStack(
        talker.backbone, precision, layer_loader(load, "backbone"), packed.part("backbone")
    )
    for number, layer in enumerate(flow.layers):
        assert isinstance(layer, FlowLayer)
        for owner, part, projections in (
            (layer.self_attn, "self_attn", ("qkv_proj", "o_proj")),
            (layer.mlp, "mlp", ("gate_up_proj", "down_proj")),
        ):
            name = f"flow.layers.{number}.{part}"
            fill = None if load is None else partial(load, owner, name)
            _replace(owner, projections, precision, packed.part(name), fill)
    _replace(flow, OTHERS, head_precision(precision), packed.part("flow"))
    packed.keep()
    return talker


def _replace(
    owner: nn.Module, names: Sequence[str], precision: Precision, part: Part, fill: Callable[[], None] | None = None
) -> None:
    """Projections of a module by their native forms; `fill` loads the module, and is called if they must be packed."""

    def made() -> list[Array]:
        if fill is not None:
            fill()
        linears = [getattr(owner, name) for name in names]
        return [array for linear in linears for array in pack(linear.weight.detach(), precision).arrays]

    arrays = part(made)
    for place, name in enumerate(names):
        outputs = getattr(owner, name).out_features
        setattr(owner, name, NativeLinear(Packed(*arrays[2 * place : 2 * place + 2]), outputs))
