"""Their names of formats and voices, and ours."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from voice_clone_client.errors import quoted

from ...speech.forms import Form
from ..session import refused

FORMATS = {
    "linear16": {"wav": "wav", "none": "pcm"},
    "mulaw": {"wav": "wav_mulaw", "none": "mulaw"},
    "alaw": {"wav": "wav_alaw", "none": "alaw"},
    "mp3": {"none": "mp3"},
    "opus": {"ogg": "opus"},
    "flac": {"none": "flac"},
    "aac": {"none": "aac"},
}
"""Our format for each encoding in each container; the first container is the default."""
SAMPLE_RATES = {"mulaw": 8000, "alaw": 8000, "mp3": 22050, "aac": 22050, "opus": 48000}
"""Hz, by default; 24000 for the others."""
_BIT_RATES = {"mp3": 48000}  # by default; the others are as ours
_LEAST_BIT_RATE, _MOST_BIT_RATE = 32000, 192000  # of our encoders, which take the nearest one


def format_of(
    encoding: str | None, container: str | None = None, sample_rate: int | None = None, bit_rate: int | None = None
) -> dict[str, Any]:
    """Our fields for a format.

    Raises:
        HTTPFailure: there is no such encoding, or it does not come in this container.
    """
    encoding = encoding or "mp3"
    if encoding not in FORMATS:
        raise refused("encoding", f"{quoted(encoding)} is none; this gateway has {', '.join(FORMATS)}")
    containers = FORMATS[encoding]
    if container is not None and container not in containers:
        raise refused("container", f"that of {encoding} is {' or '.join(containers)}, not {quoted(container)}")
    bit_rate = bit_rate or _BIT_RATES.get(encoding)
    return {
        "response_format": containers[container or next(iter(containers))],
        "sample_rate": sample_rate or SAMPLE_RATES.get(encoding, 24000),
        "bit_rate": bit_rate and min(max(bit_rate, _LEAST_BIT_RATE), _MOST_BIT_RATE),
    }


def uuid_of(name: str) -> str:
    """The uuid of a voice, which is a model to them."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


class Spoken(Form):
    """Bytes of a file as they are made, and about them in the headers."""

    def __init__(self, voice: str, characters: int) -> None:
        super().__init__()
        self._voice = voice
        self._characters = characters

    def headers(self, request_id: str) -> Mapping[str, str]:
        return {
            "dg-request-id": request_id,
            "dg-model-name": ascii(self._voice)[1:-1].strip(),
            "dg-model-uuid": uuid_of(self._voice),
            "dg-char-count": str(self._characters),
        }
