"""JSON in the text frames of a WebSocket, within bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from ..http.errors import HTTPFailure
from ..http.json_bounds import JsonBounds

_PIECE = 64 << 10  # bytes that are checked at once


async def read(message: Mapping[str, Any]) -> Any:
    """The JSON value of a message of the ASGI server; lets others run while it checks a long one.

    Raises:
        HTTPFailure: it is no JSON in a text frame, or beyond the bounds of `JsonBounds`.
    """
    text = message.get("text")
    if text is None:
        raise HTTPFailure(400, "messages are JSON in text frames, not binary ones", "invalid_argument")
    bounds, data = JsonBounds(), text.encode("utf-8", "surrogatepass")
    for begin in range(0, len(data), _PIECE):
        bounds.feed(data[begin : begin + _PIECE])
        await asyncio.sleep(0)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise HTTPFailure(400, "the message is no JSON", "invalid_json") from None
