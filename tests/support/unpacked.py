"""What a packed matrix stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from voice_clone.native.matrix.weights import Packed
from voice_clone.native.sizes import INT4_GROUP, PANEL


def unpack(packed: Packed, outputs: int, inputs: int) -> Tensor:
    """The float32 weights [outputs, inputs] that a packed matrix stands for, without its padding."""
    values = torch.from_numpy(packed.values)
    if values.dtype == torch.uint8:
        both = _rows_of(values, 4).view(len(values), -1, 4)
        groups = torch.stack([both & 15, both >> 4], dim=2).view(len(values), -1, INT4_GROUP) - 8.0
        scales = _rows_of(torch.from_numpy(packed.groups).view(torch.bfloat16).float(), 1)
        values = (groups * scales[..., None]).flatten(1)
    elif values.dtype == torch.int8:
        scales = _rows_of(torch.from_numpy(packed.groups), 1)[..., None]
        values = (_rows_of(values, 2).view(*scales.shape[:2], -1) * scales).flatten(1)
    elif values.dtype == torch.int16:
        values = values.view(torch.bfloat16).float()
    elif values.dtype == torch.uint16:
        values = _rows_of(values.view(torch.bfloat16), 2).float()
    return values[:outputs, :inputs]


def _rows_of(panels: Tensor, size: int) -> Tensor:
    """The rows [O, I] of the panels [O / P, I / size, P, size], seen as [O, I]."""
    units = panels.view({2: torch.int16, 4: torch.int32}[size * panels.element_size()])
    return units.view(-1, units.shape[1], PANEL).transpose(1, 2).contiguous().view(units.shape).view(panels.dtype)
