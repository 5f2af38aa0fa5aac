"""The native form of a decoder stack in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.native.packed_file import Part, made
from voice_clone.settings import Precision

LoadLayer = Callable[[nn.Module, int], None]
"""Fills a layer, given its number."""

Load = Callable[[nn.Module, str], None]
"""Fills a module, given its name below the talker's."""


def layer_loader(load: Load | None, stack: str) -> LoadLayer | None:
    """Fills layer i of a stack, given the stack's name."""
    return None if load is None else lambda layer, index: load(layer, f"{stack}.layers.{index}")


def native_stack(
    stack: DecoderStack, precision: Precision, load: LoadLayer | None = None, part: Part = made
) -> NativeStack:
    """A stack that takes tensors, with the weights of one in torch, which cannot run any more.

    Args:
        stack: on the CPU. Its layers are packed one after the other and freed.
        precision: of the projections.
        load: fills a layer, given its number, just before it is packed, if it is on the meta device still. None: all
            layers are loaded.
        part: as of `NativeStack`.

    Raises:
        ValueError: the stack has an option that the native code does not know.
    """

    def weights() -> Iterator[dict[str, Tensor]]:
        layers, stack.layers = list(stack.layers), nn.ModuleList()
        for index in range(len(layers)):
            yield _weights_of(layers.pop(0), index, load)
        yield {name: weight.detach() for name, weight in stack.norm.state_dict().items()}

    native = NativeStack(stack.config, precision, weights, part, like=stack.like)
    stack.layers = nn.ModuleList()
    return native


def _weights_of(layer: nn.Module, index: int, load: LoadLayer | None) -> dict[str, Tensor]:
    """A layer's weights by their names, once it is loaded."""
    if load is not None:
        load(layer, index)
    return {name: weight.detach() for name, weight in layer.state_dict().items()}
