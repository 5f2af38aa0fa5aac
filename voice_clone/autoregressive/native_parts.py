"""What native code makes a talker of. It computes without torch once all is packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from voice_clone.array_kinds import Numbers
from voice_clone.autoregressive.stack.native_stack import NativeStack, layers_by_name
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.mapped_weights import Read
from voice_clone.native.arrays import Array
from voice_clone.native.matrix.linear import PackedLinear
from voice_clone.native.matrix.weights import Packed, as_float32, head_precision, one_below_the_other, pack
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.settings import Precision


class NativeParts(NamedTuple):
    """Makes the parts of a talker.

    Attributes:
        precision: to which the weights of layers are rounded; those of heads not below int8.
        read: the checkpoint's tensors, by the names that torch's network has for them.
        packed: finds what is packed, and keeps it.
    """

    precision: Precision
    read: Read
    packed: PackedFile = NOWHERE

    def stack(self, name: str, config: StackConfig) -> NativeStack:
        """The decoder stack of this name."""
        weights = partial(layers_by_name, self.read, f"{name}.", config)
        return NativeStack(config, self.precision, weights, self.packed.part(name))

    def head(self, name: str, outputs: int, weight: Callable[[], Numbers]) -> PackedLinear:
        """A head without bias; `weight` [O, I] is called if it is not found packed."""

        def make() -> tuple[Array, Array]:
            found, kept = weight(), head_precision(self.precision)
            memory = Packed.room_for([found], kept)[0]  # else an exact weight would stay in the file's map
            return pack(found, kept, memory).arrays

        return PackedLinear(Packed(*self.packed.part(name)(make)), outputs)

    def linear(
        self, parts: Mapping[str, int], inputs: int, bias: bool = True, precision: Precision | None = None
    ) -> PackedLinear:
        """Linear layers, one below the other, as one.

        Args:
            parts: their names and numbers of outputs.
            precision: of the weight; None: that of heads.
        """

        def make() -> list[Array]:
            weight = one_below_the_other([self.read(f"{name}.weight", (n, inputs)) for name, n in parts.items()])
            biases = [as_float32(self.read(f"{name}.bias", (n,))) for name, n in parts.items() if bias]
            kept = precision or head_precision(self.precision)
            memory = Packed.room_for([weight], kept)[0]  # else an exact weight would stay in the file's map
            return [*pack(weight, kept, memory).arrays, np.concatenate([np.zeros(0, np.float32), *biases])]

        *arrays, biases = self.packed.part(next(iter(parts)))(make)
        return PackedLinear(Packed(*arrays), sum(parts.values()), biases if bias else None)
