"""The forms in which a matrix may be kept; see kernels.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.native.dots import GROUP, WIDTH

Precision = Literal["fp32", "bf16", "int8"]
Array = npt.NDArray[Any]

_SMALLEST = 1e-30  # a group of zeros still has a scale


@dataclass(frozen=True)
class Packed:
    """A matrix [..., O, I] in one of the forms: its values, and float32 scales [..., O, groups] where it has groups.

    I is the number of inputs rounded up to what a product takes at once.
    """

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
    outputs, inputs = weight.shape
    wide = torch.nn.functional.pad(weight.float(), (0, -inputs % (GROUP if precision == "int8" else WIDTH)))
    if precision == "int8":
        groups = wide.view(outputs, -1, GROUP)
        scales = groups.abs().amax(dim=-1).clamp_min_(_SMALLEST) / 127
        values = (groups / scales[..., None]).round_().to(torch.int8)
        return Packed(values.view(outputs, -1).numpy(), scales.numpy())
    values = wide if precision == "fp32" else wide.bfloat16().view(torch.uint16)
    return Packed(values.numpy(), np.zeros((1, 1), np.float32))


def unpack(packed: Packed, inputs: int) -> Tensor:
    """The float32 weights [O, inputs] that a packed matrix stands for."""
    values = torch.from_numpy(packed.values)
    if values.dtype == torch.int8:
        scales = torch.from_numpy(packed.groups)[..., None]
        values = (values.view(*scales.shape[:2], -1) * scales).flatten(1)
    elif values.dtype == torch.uint16:
        values = values.view(torch.bfloat16).float()
    return values[:, :inputs]
