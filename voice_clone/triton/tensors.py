"""Triton's tensors as numpy arrays, and several arrays as one tensor.

A tensor costs each model that it passes about 70 microseconds. So the stages send several arrays as one STRING [1]
tensor of safetensors bytes, in which names, types and shapes stay readable for tools that know the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from voice_clone.errors import InvalidArgument

Array = NDArray[Any]
Value = Array | str | bytes | int | float | bool
"""What an output may be given as; a scalar becomes shape [1]."""

DTYPES = {
    "TYPE_BOOL": np.bool_,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
"""By the name of the type in config.pbtxt."""


def as_array(value: Value, dtype: Any = None) -> Array:
    """A tensor of `value`; without `dtype`, Python numbers become INT32, FP32 or BOOL."""
    if isinstance(value, (str, bytes)):
        encoded = value.encode() if isinstance(value, str) else value
        return np.array([encoded], dtype=np.object_)
    if dtype is None:
        dtype = {int: np.int32, float: np.float32}.get(type(value))
    array = np.asarray(value, dtype=dtype)
    return np.ascontiguousarray(array.reshape(1) if array.ndim == 0 else array)


def size_of(array: Array) -> int:
    return sum(map(len, array.flat)) if array.dtype == np.object_ else array.nbytes


def pack(arrays: Mapping[str, Array]) -> bytes:
    """Arrays by name as safetensors bytes."""
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def unpack(name: str, data: bytes | None) -> dict[str, Array]:
    """The arrays of `pack`; none if there is no tensor.

    Args:
        name: of the tensor, for the error.

    Raises:
        InvalidArgument: the bytes are no safetensors file.
    """
    if not data:
        return {}
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise InvalidArgument(f"{name} must be safetensors bytes, as the stage before makes them") from None
