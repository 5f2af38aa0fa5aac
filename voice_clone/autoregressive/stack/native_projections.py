"""Native code for the projections of a stack whose positions all see each other, with smaller weights, on a CPU.

The projections are nine tenths of such a stack's work; torch computes the rest. Only `together` calls them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from voice_clone.autoregressive.stack.decoder_stack import DecoderLayer, DecoderStack
from voice_clone.autoregressive.stack.to_native import LoadLayer
from voice_clone.native.arrays import Array
from voice_clone.native.matrix.linear_module import NativeLinear
from voice_clone.native.matrix.weights import Packed, pack
from voice_clone.native.packed_file import PackedFile
from voice_clone.settings import Precision

PROJECTIONS = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")


def pack_projections(stack: DecoderStack, precision: Precision, load: LoadLayer | None, packed: PackedFile) -> None:
    """Replace the projections of a stack's layers, one layer after the other.

    Args:
        stack: on the CPU. What is between the projections becomes fp32.
        precision: to which the weights of the projections are rounded.
        load: fills a layer, given its number, if it is on the meta device still. None: all layers are loaded.
        packed: finds the weights of layers; what is found is not loaded.
    """
    for index, layer in enumerate(stack.layers):
        assert isinstance(layer, DecoderLayer)
        norms = [name for name, _ in _norms(layer)]
        arrays = packed.part(f"layers.{index}")(partial(_pack, layer, index, precision, load))
        pairs, weights = arrays[: 2 * len(PROJECTIONS)], arrays[2 * len(PROJECTIONS) :]
        for place, name in enumerate(PROJECTIONS):
            owner, _, attribute = name.rpartition(".")
            projection = layer.get_submodule(name)
            assert isinstance(projection, nn.Linear)
            bias = None if projection.bias is None else torch.from_numpy(weights.pop(0).copy())
            native = NativeLinear(Packed(*pairs[2 * place : 2 * place + 2]), projection.out_features, bias)
            setattr(layer.get_submodule(owner), attribute, native)
        for name, weight in zip(norms, weights, strict=True):
            layer.get_submodule(name).weight = nn.Parameter(torch.from_numpy(weight.copy()), requires_grad=False)


def _norms(layer: DecoderLayer) -> Iterator[tuple[str, Tensor]]:
    """Names and weights of a layer's norms."""
    for name, module in layer.named_modules():
        if name.endswith("norm"):
            yield name, module.weight


def _pack(layer: DecoderLayer, index: int, precision: Precision, load: LoadLayer | None) -> list[Array]:
    """Two arrays of each projection, its bias if it has one, the weights of the norms."""
    if load is not None:
        load(layer, index)
    pairs: list[Array] = []
    others: list[Tensor] = []
    for name in PROJECTIONS:
        projection = layer.get_submodule(name)
        assert isinstance(projection, nn.Linear)
        pairs += pack(projection.weight.detach(), precision).arrays
        others += [] if projection.bias is None else [projection.bias]
    others += [weight for _, weight in _norms(layer)]
    return [*pairs, *(np.array(each.detach().float().numpy()) for each in others)]
