"""The forms in which a matrix is stored: fp32, bf16, int8 or int4. See products.py for the meaning of their numbers.

In all but fp32, P = `PANEL` outputs are interleaved, so that the products of a vector add up to a vector of P outputs.
bf16 and int8 numbers are [O / P, I / 2, P, 2], pairs of inputs; the scales of int8 float32 [O / P, I / 128, P]. int4
bytes are [O / P, I / 8, P, 4]: of 8 inputs of an output the first four lie in the lower halves of four bytes, the other
four in the upper halves, each number plus 8. The scales of int4 are bf16 [O / P, I / 32, P]. P depends on the
processor, see instructions.py, and nothing that is kept for another processor may be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voice_clone.native.arrays import Array, empty
from voice_clone.native.instructions import INSTRUCTIONS
from voice_clone.native.matrix.tile_products import INT4_GROUP, INT8_GROUP, PANEL
from voice_clone.native.vectors import WIDTH
from voice_clone.settings import Precision

_SMALLEST = 1e-30  # so that a group of zeros has a scale
_CLIPPING = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05)  # int4 scales to try, relative to the one that clips nothing
_UNITS = {2: torch.int16, 4: torch.int32}  # by their bytes
# The type of the values, weights in each, weights of a group, the type of its scale.
_FORMS: dict[Precision, tuple[type[np.generic], int, int, type[np.generic]]] = {
    "fp32": (np.float32, 1, 0, np.float32),
    "bf16": (np.uint16, 1, 0, np.float32),
    "int8": (np.int8, 1, INT8_GROUP, np.float32),
    "int4": (np.uint8, 2, INT4_GROUP, np.uint16),
}
_ROWS = 256  # rows that are rounded to int4 at once, few enough for the processor's cache


@dataclass(frozen=True)
class Packed:
    """A matrix [..., O, I] in one of the forms. The type of `values` says which; see products.py. So no two forms share
    a type: numbers of uint8 are always int4.

    I is the number of inputs, padded with zeros to what a product takes at once. But with fp32, O is the number of
    outputs padded to whole panels.

    Attributes:
        values: the weights.
        groups: the scales of the groups of weights; with fp32 and bf16 one number without a meaning.
    """

    values: Array
    groups: Array

    @property
    def arrays(self) -> tuple[Array, Array]:
        """`values` and `groups`, as native functions take them."""
        return self.values, self.groups

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.values.nbytes + self.groups.nbytes

    @property
    def inputs(self) -> int:
        """I, the padded number of inputs."""
        return int(self.values.shape[-1]) * (2 if self.values.dtype == np.uint8 else 1)

    @property
    def activation_type(self) -> type[np.generic]:
        """The type to which a product rounds rows of activations."""
        kinds: dict[Any, type[np.generic]] = {np.dtype(np.int8): np.int16, np.dtype(np.uint8): np.int8}
        return kinds.get(self.values.dtype, np.float32)

    @property
    def prompt_type(self) -> type[np.generic]:
        """The type to which a product rounds rows of prompts."""
        dots = INSTRUCTIONS.bf16_dots and self.values.dtype == np.uint16
        return np.uint16 if dots else self.activation_type

    @property
    def activation_scales(self) -> int:
        """How many scales a rounded row of activations has."""
        return 2 * int(self.groups.shape[-1]) if self.values.dtype == np.uint8 else 1

    def __getitem__(self, index: int | slice) -> Packed:
        """Some of several matrices, or some outputs of a matrix. The result shares the memory."""
        return Packed(self.values[index], self.groups[index])

    @classmethod
    def empty(cls, count: int, shape: Sequence[int], precision: Precision) -> Packed:
        """Memory for so many matrices of one form and this shape, [O, I], without padding: [count, O, I]."""
        kind, share, group, group_kind = _FORMS[precision]
        _, more_inputs, _, more_outputs = _missing(shape, precision)
        rows, columns = shape[0] + more_outputs, shape[1] + more_inputs
        groups = (rows, columns // group) if group else (1, 1)
        return cls(empty((count, rows, columns // share), kind), empty((count, *groups), group_kind))


def head_precision(precision: Precision) -> Precision:
    """The precision of output heads beside layers of `precision`.

    It is at least int8: heads are small, and no later layer corrects their errors.
    """
    return "int8" if precision == "int4" else precision


def pack(weight: Tensor, precision: Precision, into: Packed | None = None) -> Packed:
    """Round a weight [O, I] of any type, on the CPU, to `precision`.

    Args:
        into: memory of this form that becomes the result; without it, an fp32 result may share the weight's memory.
    """
    missing = _missing(weight.shape, precision)
    if any(missing):  # a pad of nothing is a copy
        weight = torch.nn.functional.pad(weight, missing)
    if into is None and precision == "fp32":
        return Packed(weight.float().numpy(), np.zeros((1, 1), np.float32))
    into = into or Packed.empty(1, weight.shape, precision)[0]
    values, groups = map(torch.from_numpy, into.arrays)
    if precision == "fp32":
        values.copy_(weight)
        groups.zero_()
    elif precision == "bf16":
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
    return into


def _missing(shape: Sequence[int], precision: Precision) -> tuple[int, int, int, int]:
    """What a weight [O, I] is padded with: inputs before and behind, outputs before and behind."""
    outputs, inputs = shape
    size = {"int8": INT8_GROUP, "int4": INT4_GROUP}.get(precision, WIDTH)
    return 0, -inputs % size, 0, -outputs % PANEL * (precision != "fp32")


def _interleave(rows: Tensor, size: int, panels: Tensor) -> None:
    """Rows [O, I] -> the panels [O / P, I / size, P, size], seen as [O, I]."""
    kind = _UNITS[size * rows.element_size()]  # each unit is moved as one number, which is faster
    units, places = rows.view(kind), panels.view(kind)
    places.view(-1, units.shape[1], PANEL).copy_(units.view(-1, PANEL, units.shape[1]).transpose(1, 2))


def _rows_of(panels: Tensor, size: int) -> Tensor:
    """The rows that `_interleave` took."""
    units = panels.view(_UNITS[size * panels.element_size()])
    return units.view(-1, units.shape[1], PANEL).transpose(1, 2).contiguous().view(units.shape).view(panels.dtype)


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


def embedding_array(table: Tensor) -> Array:
    """A table of embeddings, fp32 or bf16, as native code takes it: float32, or the bits of bf16 as uint16.

    The array shares the tensor's memory.
    """
    array: Array = (table.view(torch.uint16) if table.dtype == torch.bfloat16 else table).numpy()
    return array


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
    elif values.dtype == torch.uint16:
        values = _rows_of(values.view(torch.bfloat16), 2).float()
    return values[:outputs, :inputs]
