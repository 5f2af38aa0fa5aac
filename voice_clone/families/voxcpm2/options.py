"""The options that VoxCPM2 alone has, which prompt and talker both check. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voice_clone.errors import InvalidArgument

CFG_VALUE, INFERENCE_TIMESTEPS, MODE, STYLE = "cfg_value", "inference_timesteps", "mode", "style"

REFERENCE, CONTINUATION, REF_CONTINUATION = "reference", "continuation", "ref_continuation"
MODES = (REFERENCE, CONTINUATION, REF_CONTINUATION)
"""What the talker hears of a clip: its timbre, the clip as the beginning of its speech, or both."""

STEPS, LEAST_STEPS, MOST_STEPS = 10, 4, 30
CFG, LEAST_CFG, MOST_CFG = 2.0, 1.0, 3.0


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
