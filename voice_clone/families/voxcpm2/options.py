"""The options that VoxCPM2 alone has, which prompt and talker both check. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voice_clone.errors import InvalidArgument, quoted
from voice_clone.speech import check_options, has_words

CFG_VALUE, INFERENCE_TIMESTEPS, MODE, STYLE = "cfg_value", "inference_timesteps", "mode", "style"
OPTIONS: dict[str, type] = {CFG_VALUE: float, INFERENCE_TIMESTEPS: int, MODE: str, STYLE: str}

REFERENCE, CONTINUATION, REF_CONTINUATION = "reference", "continuation", "ref_continuation"
MODES = (REFERENCE, CONTINUATION, REF_CONTINUATION)
"""What the talker hears of a clip: its timbre, the clip as the beginning of its speech, or both."""

STEPS, LEAST_STEPS, MOST_STEPS = 10, 4, 30
CFG, LEAST_CFG, MOST_CFG = 2.0, 1.0, 3.0


def check_guidance(cfg_value: float, inference_timesteps: int) -> None:
    """Check the ranges of two options.

    Raises:
        InvalidArgument: one of them is out of range.
    """
    if not LEAST_CFG <= cfg_value <= MOST_CFG:  # NaN is not
        raise InvalidArgument(
            f"`options.{CFG_VALUE}` must be a number from {LEAST_CFG:g} to {MOST_CFG:g}, got {cfg_value}"
        )
    if not LEAST_STEPS <= inference_timesteps <= MOST_STEPS:
        raise InvalidArgument(
            f"`options.{INFERENCE_TIMESTEPS}` must be a number from {LEAST_STEPS} to {MOST_STEPS}, "
            f"got {inference_timesteps}"
        )


def check(options: Mapping[str, Any]) -> None:
    """Check all options of a request, by themselves and with each other.

    Raises:
        InvalidArgument: one is unknown, of another type or out of range, or two contradict each other.
    """
    check_options(options, OPTIONS)
    check_guidance(options.get(CFG_VALUE, CFG), options.get(INFERENCE_TIMESTEPS, STEPS))
    mode, style = options.get(MODE), options.get(STYLE)
    if mode is not None and mode not in MODES:
        raise InvalidArgument(f"`options.{MODE}` is {quoted(mode)}; it must be one of {', '.join(MODES)}")
    if style is None:
        return
    if not has_words(style):
        raise InvalidArgument(f"`options.{STYLE}` is blank; say how to speak, or leave it out")
    if mode not in (None, REFERENCE):
        raise InvalidArgument(
            f"`options.{STYLE}` would be read aloud in the mode {mode}; leave out either it or `options.{MODE}`, or "
            f"use `options.{MODE} {REFERENCE}`"
        )
