"""Memory for native code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from voice_clone.native.sizes import LINE

Array = npt.NDArray[Any]


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an array of any contents that begins at a line of the processor's cache.

    A large array of numpy's begins 16 bytes behind the beginning of a line. Every second vector of 32 bytes, and every
    vector of 64, would lie in two lines and be read twice. The memory is nevertheless numpy's, because numpy, unlike
    torch, asks the system for large pages.
    """
    shape = (shape,) if isinstance(shape, int) else shape
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = np.empty(size + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    return memory[first : first + size].view(kind).reshape(shape)


def zeros(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an array of zeros that begins at a line of the processor's cache."""
    array = empty(shape, dtype)
    array.fill(0)
    return array
