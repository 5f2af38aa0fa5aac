"""Values of the fields and options of a request, made from what their tables say."""

from __future__ import annotations

import math
from typing import Any

from voice_clone.family import Option
from voice_clone.request_fields import RequestField

LARGEST = {"INT32": 2**31 - 1, "UINT64": 2**64 - 1}


def another(each: RequestField | Option) -> Any:
    """A value that may be given, and is not the usual one."""
    if isinstance(each, Option):
        kind, least, most = each.type, each.least, each.most
        if each.choices:
            return each.choices[-1]
    else:
        kind = {"STRING": str, "BOOL": bool, "FP32": float}.get(each.dtype, int)
        least, most = (each.above if each.least is None else each.least), each.most
        if each.dtype == "UINT64":
            return most
    if kind is str:
        return "German"
    if kind is bool:
        return isinstance(each, Option) and not each.default
    if least is None:
        raise ValueError(f"{each.name} has no range: give a value by hand")
    return kind(least + 2 if kind is int else least + 0.5 if most is None else (least + most) / 2)


def outside(each: RequestField) -> list[float]:
    """Numbers that it may not be."""
    found: list[float] = [each.least - 1] if each.least is not None else []
    found += [each.above, each.above - 1] if each.above is not None else []
    found += [each.most + 1] if each.most is not None and each.most < LARGEST.get(each.dtype, math.inf) else []
    return found + [math.nan] * (each.dtype == "FP32")
