"""JSON objects that callers send as text."""

from __future__ import annotations

import json
import math
from typing import Any

from voice_clone.errors import InvalidArgument


def parse_object(name: str, text: str | None) -> dict[str, Any]:
    """The JSON object in `text`; an empty one if there is no text.

    Args:
        name: of the input, for the error.

    Raises:
        InvalidArgument: it is not JSON, or not an object; NaN and infinity are not JSON, and a lone surrogate, which
            JSON can write as an escape, is no text.
    """
    try:
        value = json.loads(text or "{}", parse_constant=_refuse, parse_float=_finite)
        if text and "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # RecursionError: nested too deep
        value = None
    if not isinstance(value, dict):
        raise InvalidArgument(f"{name} must be a JSON object")
    return value


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
