"""The header of safetensors files: of each tensor its type, its shape, and where its bytes are.

The form: the length of the header (8 bytes, little-endian), the header, a JSON object, and the bytes of the tensors.
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_SIZES = {  # bytes of a number, by the name of its type
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}

Entries = dict[str, dict[str, Any]]
"""{tensor name: {"dtype", "shape", "data_offsets"}}; places are counted from the end of the header."""


def parsed(header: bytes, size: int) -> tuple[dict[str, str], Entries]:
    """The metadata and the entries of a file whose tensors have `size` bytes.

    Raises:
        ValueError: the header is none, or not that of such a file.
    """
    try:
        entries = json.loads(header.decode())
        metadata = dict(entries.pop("__metadata__", None) or {})
        end = 0
        for begin, stop in sorted(map(place, entries.values())):
            if begin != end or stop < begin:
                raise ValueError("the tensors leave gaps, or overlap")
            end = stop
    except Exception as error:  # it may hold anything
        raise ValueError(f"the header cannot be read: {error}") from None
    if end != size:
        raise ValueError("the file is cut short, or too long")
    return metadata, entries


def place(entry: Mapping[str, Any]) -> tuple[int, int]:
    """Where the bytes of a tensor begin and end, from the end of the header.

    Raises:
        ValueError: the tensor has too many bytes, or too few.
    """
    begin, stop = entry["data_offsets"]
    numbers = begin, stop, *entry["shape"]
    if any(type(each) is not int or each < 0 for each in numbers):
        raise ValueError("a place or a size is no whole number")
    if stop - begin != _SIZES[entry["dtype"]] * math.prod(entry["shape"]):
        raise ValueError("a tensor has too many bytes, or too few")
    return begin, stop
