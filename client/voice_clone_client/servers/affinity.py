"""Headers by which a load balancer knows which calls belong together.

A server is faster with a voice that it has in memory. So a call about a voice carries a hash of it, by which a balancer
chooses a server, as this client does among several. It is for speed alone: every server of a fleet has every voice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from ..types import name_key

HEADER = "x-voice-affinity"
STREAM_HEADER = "x-voice-stream"
"""Has the id of a speech whose text is appended, or of a bundle in parts: its requests must all reach one server."""

_NAMES = ("voice", "name")
_CLIPS = ("reference_audio", "audio", "speaker_embedding")
Metadata = tuple[tuple[str, str], ...]


def of_voice(name: str) -> str:
    """Hash a registered voice to 32 hexadecimal digits. All names of one voice have the same hash."""
    return _digest(name_key(name).encode())


def of_request(request: Any) -> str | None:
    """Hash the voice that a ModelInferRequest is about, or its clip; None if it is about no voice."""
    inputs = dict(zip((each.name for each in request.inputs), request.raw_input_contents, strict=True))
    for name in _NAMES:
        if name in inputs:
            return of_voice(inputs[name][4:].decode())  # behind the length of the string
    return next((_digest(inputs[name]) for name in _CLIPS if name in inputs), None)


def headers(key: str | None, stream_id: str | None = None) -> Metadata:
    found: Sequence[tuple[str, str | None]] = ((HEADER, key), (STREAM_HEADER, stream_id))
    return tuple((name, value) for name, value in found if value is not None)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
