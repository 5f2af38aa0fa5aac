"""A linear layer that runs as native code, and the memory that native code works in."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from voice_clone.native.matrix.weights import Array, Packed, Precision, pack
from voice_clone.native.thread_pool import team
from voice_clone.native.transformer import kernels


class Work:
    """What each thread computes with, for as many rows as were asked for last."""

    def __init__(self, *matrices: Packed) -> None:
        self._inputs = max(matrix.inputs for matrix in matrices)
        self._scales = max(matrix.activation_scales for matrix in matrices)
        self._kind = matrices[0].activations
        self._rows = 0
        self.own: tuple[Array, ...]

    def resize(self, rows: int) -> None:
        if rows != self._rows:
            self._rows = rows
            threads = team().threads
            scales = np.zeros((threads, rows * self._scales), np.float32)
            self.own = np.zeros((threads, rows * self._inputs), self._kind), scales


class NativeLinear(nn.Module):
    """As `nn.Linear`, fp32 in and out, the weight in one of the forms of weights.py.

    Attributes:
        packed: the weight.
        bias: [O], if there is one.
    """

    def __init__(self, packed: Packed, outputs: int, bias: Tensor | None = None) -> None:
        super().__init__()
        self.packed = packed
        self.bias = bias
        self._outputs = outputs
        self._work = Work(packed)

    @classmethod
    def of(cls, linear: nn.Module, precision: Precision) -> NativeLinear:
        """A layer of torch's, its weight rounded to `precision`."""
        assert isinstance(linear, nn.Linear)
        bias = None if linear.bias is None else linear.bias.detach().float()
        return cls(pack(linear.weight.detach(), precision), linear.out_features, bias)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight."""
        return self.packed.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        rows = x.reshape(-1, x.shape[-1]).contiguous().numpy()
        out = np.empty((rows.shape[0], self._outputs), np.float32)
        self._work.resize(rows.shape[0])
        team().run(kernels.linear, 1, rows.size * out.shape[1], *self.packed.arrays, rows, self._work.own, out)
        result = torch.from_numpy(out).view(*x.shape[:-1], -1)
        return result if self.bias is None else result.add_(self.bias)
