"""How a speech can end, as its `finish_reason` says."""

from __future__ import annotations

WHOLE = ("stop", "length")
"""The model said the text, or the speech has the length that the caller wanted. All others are missed ends."""


def is_whole(reason: str | None) -> bool:
    """Return whether a speech that ended so has all that its caller wanted."""
    return reason in WHOLE


def worse(one: str | None, other: str | None) -> str | None:
    """Return the worse of two finish reasons, of two missed ends the first. None, no reason at all, is a missed end."""
    return max(one, other, key=lambda reason: WHOLE.index(reason) if reason in WHOLE else len(WHOLE))
