"""The options that VoxCPM2 alone has, which prompt and talker both check. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voice_clone.errors import InvalidArgument
from voice_clone.families.voxcpm2.family import CARD

_CFG, _STEPS, _MODE, _STYLE = CARD.options
MODE, STYLE = _MODE.name, _STYLE.name
REFERENCE, CONTINUATION, REF_CONTINUATION = _MODE.choices
"""What the talker hears of a clip: its timbre, the clip as the beginning of its speech, or both."""

CFG: float = _CFG.default
STEPS: int = _STEPS.default
LEAST_STEPS, MOST_STEPS = int(_STEPS.least or 0), int(_STEPS.most or 0)


def asked_mode(options: Mapping[str, Any]) -> str | None:
    """What is to be heard of a clip; None: the most that the voice has."""
    return REFERENCE if options.get(STYLE) is not None else options.get(MODE)


def check_together(options: Mapping[str, Any]) -> None:
    """Check two options against each other.

    Raises:
        InvalidArgument: they contradict each other.
    """
    mode, style = options.get(MODE), options.get(STYLE)
    if style is not None and mode not in (None, REFERENCE):
        raise InvalidArgument(
            f"`options.{STYLE}` would be read aloud in the mode {mode}; leave out either it or `options.{MODE}`, or "
            f"use `options.{MODE} {REFERENCE}`"
        )
