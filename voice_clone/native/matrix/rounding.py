"""Rounds matrices to the forms that are not exact. See weights.py for the forms.

Numbers are added one after the other, as nothing else is the same on all processors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voice_clone.native.arrays import Array
from voice_clone.native.sizes import INT4_GROUP, INT8_GROUP, PANEL
from voice_clone.native.thread_pool import computing_threads
from voice_clone.settings import Precision

_SMALLEST = np.float32(1e-30)  # so that a group of zeros has a scale
_CLIPPING = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05)  # int4 scales to try, relative to the one that clips nothing
_ROWS = 128  # that are rounded at once, few enough for the processor's cache


def round_into(weight: Array, padding: Sequence[int], precision: Precision, into: tuple[Array, Array]) -> None:
    """Round a weight [O, I] to bf16, int8 or int4, into the values and groups of that form.

    Args:
        weight: numbers of any type, in which uint16 are the bits of bf16.
        padding: inputs before and behind, outputs before and behind.
    """
    from concurrent.futures import ThreadPoolExecutor  # a start that finds packed weights does without

    if any(padding):  # a pad of nothing is a copy
        weight = np.pad(weight, (padding[2:], padding[:2]))
    values, groups = into
    if precision == "bf16":
        groups.fill(0)

    def round_rows(start: int) -> None:
        rows, place = weight[start : start + _ROWS], slice(start, start + _ROWS)
        if precision == "bf16":
            _interleave(bf16_bits(rows), 2, values[place])
            return
        rounded, size = {"int8": (_rounded_to_int8, 2), "int4": (_rounded_to_int4, 4)}[precision]
        scales, numbers = rounded(_widened(rows))
        _interleave(numbers, size, values[place])
        _interleave(scales, 1, groups[place])

    with ThreadPoolExecutor(computing_threads()) as threads:
        list(threads.map(round_rows, range(0, len(weight), _ROWS)))


def widen(weight: Array, out: Array) -> Array:
    """Write numbers of any type, in which uint16 are the bits of bf16, to a float32 array of the same shape."""
    if weight.dtype == np.uint16:
        np.left_shift(weight, 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        out[...] = weight
    return out


def in_bf16(numbers: Array) -> Array:
    """Finite float32 numbers, rounded to bf16."""
    bits = numbers.view(np.uint32)
    rounded: Array = (bits + (0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded


def bf16_bits(weight: Array) -> Array:
    """Numbers as of `widen`, rounded to bf16, as uint16."""
    if weight.dtype == np.uint16:
        return weight
    return (in_bf16(_widened(weight)).view(np.uint32) >> 16).astype(np.uint16)


def _widened(weight: Array) -> Array:
    return widen(weight, np.empty(weight.shape, np.float32))


def _interleave(rows: Array, size: int, panels: Array) -> None:
    """Rows [O, I] -> the panels [O / P, I / size, P, size], seen as [O, I]."""
    kind = f"u{size * rows.itemsize}"  # each unit is moved as one number, which is faster
    units, places = np.ascontiguousarray(rows).view(kind), panels.view(kind)
    places.reshape(-1, units.shape[1], PANEL)[...] = units.reshape(-1, PANEL, units.shape[1]).swapaxes(1, 2)


def _rounded_to_int8(wide: Array) -> tuple[Array, Array]:
    """Rows [O, I] -> the scales [O, I / 128] and the numbers [O, I]."""
    groups = wide.reshape(len(wide), -1, INT8_GROUP)
    scales = np.abs(groups).max(axis=-1).clip(min=_SMALLEST) / np.float32(127)
    return scales, np.rint(groups / scales[..., None]).astype(np.int8).reshape(wide.shape)


def _rounded_to_int4(wide: Array) -> tuple[Array, Array]:
    """Rows [O, I] -> the scales [O, I / 32], as bits of bf16, and the bytes [O, I / 2]."""
    groups = wide.reshape(-1, INT4_GROUP).T.copy()  # so that a step is one over long rows
    scales = _least_squares(groups)
    numbers = np.rint(groups / scales).clip(-8, 7) + np.float32(8)
    halves = numbers.astype(np.uint8).T.reshape(len(wide), -1, 2, 4)
    both = halves[:, :, 0] | halves[:, :, 1] << 4
    return bf16_bits(scales).reshape(len(wide), -1), both.reshape(len(wide), -1)


def _least_squares(groups: Array) -> Array:
    """Groups [32, G] -> for each group the scale, of those tried, with the least squared error: [G].

    bf16 holds a scale exactly. Its sign makes the number farthest from zero -8, because int4 has no 8.
    """
    least, most = groups.min(axis=0), groups.max(axis=0)
    farthest = np.where(-least > most, least, most)
    farthest = np.where(np.abs(farthest) < _SMALLEST, _SMALLEST, farthest) / np.float32(-8)
    best, scales, values = np.full_like(farthest, np.inf), farthest, np.empty_like(groups)
    for share in _CLIPPING:
        tried = in_bf16(farthest * np.float32(share))
        np.rint(np.divide(groups, tried, out=values), out=values).clip(-8, 7, out=values)
        values *= tried
        values -= groups
        values *= values
        error = values.sum(axis=0)
        scales, best = np.where(error < best, tried, scales), np.minimum(error, best)
    return scales
