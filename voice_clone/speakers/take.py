"""What the record of a speaker says of a further recording."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

MAX_TAKES = 25  # recordings of one upload
_MOST_BYTES = 2**53


class Take(NamedTuple):
    """A further recording of the speaker of a clip, which came with it.

    Attributes:
        number: of its file in the upload, from 1.
        file_size: bytes.
        duration, speech_seconds: of all, and of the speech in it.
        audio_digest: as of `SpeakerRecord`.
    """

    number: int
    file_size: int
    duration: float
    speech_seconds: float
    audio_digest: str

    def public(self) -> dict[str, Any]:
        """What callers see of it."""
        return {name: value for name, value in self._asdict().items() if name != "audio_digest"}


def takes_of(listed: Any) -> tuple[Take, ...]:
    """The takes that a file lists.

    Raises:
        ValueError, TypeError: they are none, too many, or two have one number.
    """
    takes = tuple(Take(*values) for values in listed)
    for take in takes:
        if not isinstance(take.audio_digest, str) or not all(type(size) is int for size in take[:2]):
            raise ValueError("a take has values of wrong types")
        if not 1 <= take.number <= MAX_TAKES or not 1 <= take.file_size < _MOST_BYTES:
            raise ValueError("a take has values out of range")
        if not all(isinstance(each, (int, float)) and 0 <= each < math.inf for each in take[2:4]):
            raise ValueError("a take has values out of range")
    if len({take.number for take in takes}) != len(takes) or len(takes) >= MAX_TAKES:
        raise ValueError("too many takes, or two of one number")
    return takes
