"""A linear layer as native code, and the memory that the products of a matrix need."""

from __future__ import annotations

import numpy as np

from voice_clone.native.arrays import Array, empty, zeros
from voice_clone.native.kernel import Kernel
from voice_clone.native.matrix.weights import Packed
from voice_clone.native.thread_pool import thread_pool

MOST_ROWS = 256  # of one product of a linear layer, which keeps memory for them

linear = Kernel("matrix.products.linear")


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


class PackedLinear:
    """A linear layer with its weight in one of the forms of weights.py; fp32 in and out.

    Args:
        prompts: as of `Workspace`.

    Attributes:
        packed: the weight.
        bias: float32 [O], or None.
    """

    def __init__(self, packed: Packed, outputs: int, bias: Array | None = None, prompts: bool = False) -> None:
        self.packed, self.bias = packed, bias
        self._outputs = outputs
        self._workspace = Workspace(packed, prompts=prompts)

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    def widen(self) -> None:
        """Store an fp32 weight with 32 bits for each number."""
        self.packed = self.packed.widened()

    def __call__(self, x: Array) -> Array:
        """float32 [..., I] -> float32 [..., O].

        Raises:
            ValueError: a row is longer than those of the weight; native code would write behind its memory.
        """
        if x.shape[-1] > self.packed.inputs:
            raise ValueError(f"rows of {x.shape[-1]} numbers for a weight of {self.packed.inputs} inputs")
        rows = np.ascontiguousarray(x.reshape(-1, x.shape[-1]))
        out = empty((rows.shape[0], self._outputs), np.float32)
        self._workspace.resize(min(len(rows), MOST_ROWS))
        for begin in range(0, len(rows), MOST_ROWS):
            some, into = rows[begin : begin + MOST_ROWS], out[begin : begin + MOST_ROWS]
            multiplications = some.size * out.shape[1]
            thread_pool().run(linear, 1, multiplications, *self.packed.arrays, some, self._workspace.per_thread, into)
        if self.bias is not None:
            out += self.bias
        return out.reshape(*x.shape[:-1], -1)
