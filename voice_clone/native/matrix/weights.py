"""The forms in which a matrix is stored: fp32, bf16, int8 or int4. See products.py for the meaning of their numbers.

Most checkpoints have their weights in bf16. An fp32 matrix of such numbers is stored in 16 bits for each, which halves
what a product reads; it computes with the same float32 numbers, to the last bit.

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

from voice_clone.array_kinds import Numbers
from voice_clone.native.arrays import Array, empty
from voice_clone.native.instructions import INSTRUCTIONS
from voice_clone.native.matrix.rounding import bf16_bits, round_into, widen
from voice_clone.native.sizes import INT4_GROUP, INT8_GROUP, PANEL, WIDTH
from voice_clone.settings import Precision

# The type of the values, weights in each, weights of a group, the type of its scale.
_FORMS: dict[Precision, tuple[type[np.generic], int, int, type[np.generic]]] = {
    "fp32": (np.float32, 1, 0, np.float32),  # or int16, see `Packed`
    "bf16": (np.uint16, 1, 0, np.float32),
    "int8": (np.int8, 1, INT8_GROUP, np.float32),
    "int4": (np.uint8, 2, INT4_GROUP, np.uint16),
}


_ROWS = 256  # that are looked at at once


@dataclass(frozen=True)
class Packed:
    """A matrix [..., O, I] in one of the forms. The type of `values` says which; see products.py. So no two forms share
    a type: numbers of uint8 are always int4, and int16 are bf16 numbers that a product computes with as fp32.

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

    @property
    def in_halves(self) -> bool:
        """Whether fp32 numbers take 16 bits each."""
        return self.values.dtype == np.int16

    def widened(self) -> Packed:
        """The same fp32 matrices with 32 bits for each number."""
        if not self.in_halves:
            return self
        values = empty(self.values.shape, np.float32)
        return Packed(widen(self.values.view(np.uint16), values), self.groups)

    @classmethod
    def room_for(cls, weights: Sequence[Numbers], precision: Precision) -> Packed:
        """Memory for these weights, [O, I] each, in one form: [weights, O, I]."""
        halves = precision == "fp32" and all(is_bf16(weight) for weight in weights)
        return cls.empty(len(weights), weights[0].shape, precision, halves)

    @classmethod
    def empty(cls, count: int, shape: Sequence[int], precision: Precision, halves: bool = False) -> Packed:
        """Memory for so many matrices of one form and this shape, [O, I], without padding: [count, O, I].

        `halves`: those of fp32 take 16 bits for each number.
        """
        kind, share, group, group_kind = _FORMS[precision]
        kind = np.int16 if halves else kind
        _, more_inputs, _, more_outputs = missing(shape, precision)
        rows, columns = shape[0] + more_outputs, shape[1] + more_inputs
        groups = (rows, columns // group) if group else (1, 1)
        return cls(empty((count, rows, columns // share), kind), empty((count, *groups), group_kind))


def head_precision(precision: Precision) -> Precision:
    """The precision of output heads beside layers of `precision`.

    It is at least int8: heads are small, and no later layer corrects their errors.
    """
    return "int8" if precision == "int4" else precision


def pack(weight: Numbers, precision: Precision, into: Packed | None = None) -> Packed:
    """Round a weight [O, I], on the CPU, to `precision`.

    Args:
        weight: a tensor of any type of numbers, or an array, in which uint16 are the bits of bf16.
        into: memory of this form that becomes the result; without it, an fp32 result may share the weight's memory.
    """
    array = as_array(weight)
    if precision == "fp32":
        return _exact(array, into)
    into = into or Packed.empty(1, array.shape, precision)[0]
    round_into(array, missing(array.shape, precision), precision, into.arrays)
    return into


def _exact(weight: Array, into: Packed | None) -> Packed:
    inputs = weight.shape[1]
    if into is None:
        into = Packed.room_for([weight], "fp32")[0]
        if weight.dtype == into.values.dtype == np.float32 and into.values.shape == weight.shape:
            return Packed(weight, np.zeros((1, 1), np.float32))
    if into.values.dtype == np.int16:
        into.values[:, :inputs] = bf16_bits(weight).view(np.int16)
    else:
        widen(weight, into.values[:, :inputs])
    into.values[:, inputs:] = 0
    into.groups.fill(0)
    return into


def is_bf16(weight: Numbers) -> bool:
    """Whether bf16 has all numbers of a weight."""
    array = as_array(weight)
    if array.dtype != np.float32:
        return array.dtype == np.uint16
    bits = np.ascontiguousarray(array).view(np.uint32)
    return not any((bits[start : start + _ROWS] & 0xFFFF).any() for start in range(0, len(bits), _ROWS))


def as_array(weight: Numbers) -> Array:
    """A weight as an array in the same memory; bf16 as its bits, uint16."""
    if isinstance(weight, np.ndarray):
        return weight
    import torch

    array: Array = (weight.view(torch.uint16) if weight.dtype == torch.bfloat16 else weight).numpy()
    return array


def as_float32(weight: Numbers) -> Array:
    """A weight as a float32 array in memory of its own."""
    array = as_array(weight)
    return widen(array, np.empty(array.shape, np.float32))


def one_below_the_other(weights: Sequence[Numbers]) -> Array:
    """Weights [O, I] as one array; those of one type keep it."""
    arrays = [as_array(weight) for weight in weights]
    if len({array.dtype for array in arrays}) > 1:  # bits of bf16 are no numbers to numpy
        arrays = [as_float32(array) for array in arrays]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def stacked(weights: Sequence[Numbers], exact: bool) -> Array:
    """Weights [R, C] as one array [n, R, C]: the bits of bf16, as uint16, or float32 if else they were not `exact`."""
    if exact and not all(is_bf16(weight) for weight in weights):
        return np.stack([as_float32(weight) for weight in weights])
    return np.stack([bf16_bits(as_array(weight)) for weight in weights])


def missing(shape: Sequence[int], precision: Precision) -> tuple[int, int, int, int]:
    """What a weight [O, I] is padded with: inputs before and behind, outputs before and behind."""
    outputs, inputs = shape
    size = {"int8": INT8_GROUP, "int4": INT4_GROUP}.get(precision, WIDTH)
    return 0, -inputs % size, 0, -outputs % PANEL * (precision != "fp32")
