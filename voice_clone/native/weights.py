"""The forms in which a matrix may be kept; see kernels.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.native.kernels import GROUP, ROWS

Precision = Literal["fp32", "bf16", "int8"]
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
    def rows(self) -> int:
        """Products with more than one row take a multiple of so many."""
        return 1 if self.values.dtype == np.int8 else ROWS

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
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -inputs % GROUP)).view(outputs, -1, GROUP)
    scales = padded.abs().amax(dim=-1).clamp_min_(_SMALLEST) / 127
    values = (padded / scales[..., None]).round_().to(torch.int8)
    return Packed(values.view(outputs, -1).numpy(), scales.numpy())


def unpack(packed: Packed, inputs: int) -> Tensor:
    """The float32 weights [O, inputs] that a packed matrix stands for."""
    values = torch.from_numpy(packed.values)
    if values.dtype == torch.float32:
        return values.clone()
    if values.dtype == torch.uint16:
        return values.view(torch.bfloat16).float()
    scales = torch.from_numpy(packed.groups)[..., None]
    return (values.view(*scales.shape[:2], -1) * scales).flatten(1)[:, :inputs]


def _no_groups() -> Array:
    return np.zeros((1, 1), np.float32)
