"""The forms in which a matrix may be kept; see kernels.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.native.kernels import INT4_GROUP, INT8_GROUP

Precision = Literal["fp32", "bf16", "int8", "int4"]
Array = npt.NDArray[Any]

_SMALLEST = 1e-30  # a group of zeros still has a scale


@dataclass(frozen=True)
class Packed:
    """A matrix [..., O, I] in one of the forms: its values, and float32 scales [..., O, groups] where it has groups."""

    values: Array
    groups: Array

    @property
    def arrays(self) -> tuple[Array, Array]:
        return self.values, self.groups

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.groups.nbytes

    @staticmethod
    def stack(parts: list[Packed]) -> Packed:
        """Matrices of one shape and form, one after the other."""
        return Packed(np.stack([part.values for part in parts]), np.stack([part.groups for part in parts]))


def pack(weight: Tensor, precision: Precision) -> Packed:
    """Round a weight [O, I] on the CPU to `precision`."""
    if precision == "fp32":
        return Packed(weight.float().numpy().copy(), _no_groups())
    if precision == "bf16":
        return Packed(weight.bfloat16().view(torch.uint16).numpy().copy(), _no_groups())
    size = INT8_GROUP if precision == "int8" else INT4_GROUP
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -inputs % size)).view(outputs, -1, size)
    if precision == "int8":
        scales = padded.abs().amax(dim=-1).clamp_min_(_SMALLEST) / 127
        values = (padded / scales[..., None]).round_().to(torch.int8)
        return Packed(values.view(outputs, -1).numpy(), scales.numpy())
    # The value of the largest magnitude becomes -8, whichever its sign: the one step that 4 bits have on one side alone.
    largest = padded.gather(-1, padded.abs().argmax(dim=-1, keepdim=True))
    scales = (largest / -8)[..., 0]
    scales = torch.where(scales.abs() < _SMALLEST, _SMALLEST, scales)
    values = (padded / scales[..., None]).round_().clamp_(-8, 7).add_(8).to(torch.uint8)
    low, high = values.chunk(2, dim=-1)
    return Packed((low | high << 4).view(outputs, -1).numpy(), scales.numpy())


def unpack(packed: Packed, inputs: int) -> Tensor:
    """The float32 weights [O, inputs] that a packed matrix stands for."""
    values = torch.from_numpy(packed.values)
    if values.dtype == torch.float32:
        return values.clone()
    if values.dtype == torch.uint16:
        return values.view(torch.bfloat16).float()
    scales = torch.from_numpy(packed.groups)[..., None]
    grouped = values.view(*scales.shape[:2], -1)
    if values.dtype == torch.uint8:
        grouped = torch.cat([grouped & 15, grouped >> 4], dim=-1).to(torch.int8) - 8
    return (grouped * scales).flatten(1)[:, :inputs]


def _no_groups() -> Array:
    return np.zeros((1, 1), np.float32)
