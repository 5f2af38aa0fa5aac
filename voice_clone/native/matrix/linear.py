"""A linear layer as native code, and the memory that the products of a matrix need."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from voice_clone.native.arrays import Array, empty, zeros
from voice_clone.native.matrix.products import linear
from voice_clone.native.matrix.weights import Packed, pack
from voice_clone.native.packed_file import Part
from voice_clone.native.thread_pool import thread_pool
from voice_clone.settings import Precision


class Workspace:
    """Memory in which each thread rounds rows of activations. It fits the number of rows of the last `resize`.

    Args:
        matrices: those that the rows are multiplied with, all of one precision.
        prompts: whether the rows are those of prompts.

    Attributes:
        per_thread: rounded rows [threads, rows * I] and their scales, as `products.linear` takes them.
    """

    def __init__(self, *matrices: Packed, prompts: bool = False) -> None:
        self._inputs = max(matrix.inputs for matrix in matrices)
        self._scales = max(matrix.activation_scales for matrix in matrices)
        self._kind = matrices[0].prompt_type if prompts else matrices[0].activation_type
        self._rows = 0
        self.per_thread: tuple[Array, ...]

    def resize(self, rows: int) -> None:
        """Make `per_thread` fit a number of rows."""
        if rows != self._rows:
            self._rows = rows
            threads = thread_pool().threads
            scales = zeros((threads, rows * self._scales), np.float32)
            self.per_thread = zeros((threads, rows * self._inputs), self._kind), scales


class NativeLinear(nn.Module):
    """`nn.Linear` with its weight in one of the forms of weights.py; fp32 in and out.

    Attributes:
        packed: the weight.
        bias: [O], or None.
    """

    def __init__(self, packed: Packed, outputs: int, bias: Tensor | None = None) -> None:
        super().__init__()
        self.packed = packed
        self.bias = bias
        self._outputs = outputs
        self._workspace = Workspace(packed)

    @classmethod
    def of(cls, linear: nn.Module, precision: Precision) -> NativeLinear:
        """The native form of an `nn.Linear`, its weight rounded to `precision`."""
        assert isinstance(linear, nn.Linear)
        bias = None if linear.bias is None else linear.bias.detach().float()
        return cls(pack(linear.weight.detach(), precision), linear.out_features, bias)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight."""
        return self.packed.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """float32 [..., I] -> float32 [..., O]."""
        rows = x.reshape(-1, x.shape[-1]).contiguous().numpy()
        out = empty((rows.shape[0], self._outputs), np.float32)
        self._workspace.resize(rows.shape[0])
        multiplications = rows.size * out.shape[1]
        thread_pool().run(linear, 1, multiplications, *self.packed.arrays, rows, self._workspace.per_thread, out)
        result = torch.from_numpy(out).view(*x.shape[:-1], -1)
        return result if self.bias is None else result.add_(self.bias)


def use_native_linears(
    owner: nn.Module, names: Sequence[str], precision: Precision, part: Part, fill: Callable[[], None] | None = None
) -> None:
    """Replace `nn.Linear`s of a module by their native forms.

    Args:
        owner: the module.
        names: its attributes.
        precision: to which their weights are rounded. Biases stay exact.
        part: finds the packed weights.
        fill: loads the module, and is called if they must be packed; None: it is loaded.
    """

    def made() -> list[Array]:
        if fill is not None:
            fill()
        linears = [getattr(owner, name) for name in names]
        return [array for linear in linears for array in pack(linear.weight.detach(), precision).arrays]

    arrays = part(made)
    for place, name in enumerate(names):
        linear = getattr(owner, name)
        bias = None if linear.bias is None else linear.bias.detach().float()
        setattr(owner, name, NativeLinear(Packed(*arrays[2 * place : 2 * place + 2]), linear.out_features, bias))
