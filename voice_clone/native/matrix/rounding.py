"""Rounds matrices to the forms that are not exact, in torch. See weights.py for the forms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from voice_clone.array_kinds import Numbers, as_tensor
from voice_clone.native.arrays import Array
from voice_clone.native.sizes import INT4_GROUP, INT8_GROUP, PANEL
from voice_clone.settings import Precision

_SMALLEST = 1e-30  # so that a group of zeros has a scale
_CLIPPING = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05)  # int4 scales to try, relative to the one that clips nothing
_UNITS = {2: torch.int16, 4: torch.int32}  # by their bytes
_ROWS = 256  # rows that are rounded to int4 at once, few enough for the processor's cache


def round_into(weight: Tensor, padding: Sequence[int], precision: Precision, into: tuple[Array, Array]) -> None:
    """Round a weight [O, I] of any type to bf16, int8 or int4, into the values and groups of that form.

    `padding`: inputs before and behind, outputs before and behind.
    """
    if any(padding):  # a pad of nothing is a copy
        weight = torch.nn.functional.pad(weight, padding)
    values, groups = map(torch.from_numpy, into)
    if precision == "bf16":
        _interleave(weight.bfloat16().view(torch.uint16), 2, values)
        groups.zero_()
    elif precision == "int8":
        scales, numbers = _rounded_to_int8(weight.float())
        _interleave(numbers, 2, values)
        _interleave(scales, 1, groups)
    else:
        assert precision == "int4", precision
        for start in range(0, len(weight), _ROWS):
            scales, both = _rounded_to_int4(weight[start : start + _ROWS].float())
            _interleave(both, 4, values[start : start + _ROWS])
            _interleave(scales, 1, groups[start : start + _ROWS])


def bf16_bits(weight: Numbers) -> Array:
    """A weight rounded to bf16, as uint16."""
    array: Array = as_tensor(weight).bfloat16().view(torch.uint16).numpy()
    return array


def _interleave(rows: Tensor, size: int, panels: Tensor) -> None:
    """Rows [O, I] -> the panels [O / P, I / size, P, size], seen as [O, I]."""
    kind = _UNITS[size * rows.element_size()]  # each unit is moved as one number, which is faster
    units, places = rows.view(kind), panels.view(kind)
    places.view(-1, units.shape[1], PANEL).copy_(units.view(-1, PANEL, units.shape[1]).transpose(1, 2))


def _rounded_to_int8(wide: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [O, I] -> the scales [O, I / 128] and the numbers [O, I]."""
    groups = wide.view(len(wide), -1, INT8_GROUP)
    scales = groups.abs().amax(dim=-1).clamp_min_(_SMALLEST) / 127
    return scales, (groups / scales[..., None]).round_().to(torch.int8).flatten(1)


def _rounded_to_int4(wide: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [O, I] -> the scales [O, I / 32], as bits of bf16, and the bytes [O, I / 2]."""
    groups = wide.view(wide.shape[0], -1, INT4_GROUP)
    scales = _least_squares(groups)
    values = (groups / scales[..., None]).round_().clamp_(-8, 7).add_(8).to(torch.uint8)
    low, high = values.view(wide.shape[0], -1, 2, 4).unbind(2)
    return scales.bfloat16().view(torch.uint16), (low | high << 4).flatten(1)


def _least_squares(groups: Tensor) -> Tensor:
    """Groups [O, G, 32] -> for each group the scale, of those tried, with the least squared error: [O, G].

    bf16 holds a scale exactly. Its sign makes the number farthest from zero -8, because int4 has no 8.
    """
    least, most = groups.aminmax(dim=-1)
    farthest = torch.where(-least > most, least, most)
    farthest = torch.where(farthest.abs() < _SMALLEST, _SMALLEST, farthest) / -8
    best, scales = torch.full_like(farthest, torch.inf), farthest
    for share in _CLIPPING:
        tried = (farthest * share).bfloat16().float()
        values = (groups / tried[..., None]).round_().clamp_(-8, 7)
        error = values.mul_(tried[..., None]).sub_(groups).square_().sum(dim=-1)
        scales, best = torch.where(error < best, tried, scales), torch.minimum(error, best)
    return scales
