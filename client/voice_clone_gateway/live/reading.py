"""JSON in the text frames of a WebSocket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..http.errors import HTTPFailure
from ..http.json_bounds import parse_json


async def read(message: Mapping[str, Any]) -> Any:
    """The JSON value of a message of the ASGI server; see `parse_json`.

    Raises:
        HTTPFailure: it is no JSON in a text frame.
    """
    text = message.get("text")
    if text is None:
        raise HTTPFailure(400, "messages are JSON in text frames, not binary ones", "invalid_argument")
    return await parse_json(text.encode(), "message")
