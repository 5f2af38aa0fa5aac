"""Lengths of pauses, rates and volumes, as SSML writes them."""

from __future__ import annotations

import re

LEAST_RATE, MOST_RATE = 0.25, 4.0
"""Factors of the tempo."""
MOST_PAUSE, MOST_PAUSES = 10.0, 60.0
"""Seconds of a pause, and of all pauses of a text."""

_TIME = re.compile(r"\+?(\d{1,6}(?:\.\d{0,6})?|\.\d{1,6})(ms|s)")
_STRENGTHS = {"none": 0.0, "x-weak": 0.0, "weak": 0.25, "medium": 0.5, "strong": 1.0, "x-strong": 1.5}
_RATES = {"x-slow": 0.5, "slow": 0.64, "medium": 1.0, "default": 1.0, "fast": 1.55, "x-fast": 2.0}
_VOLUMES = {"silent": 0.0, "x-soft": 0.25, "soft": 0.5, "medium": 1.0, "default": 1.0, "loud": 1.41, "x-loud": 2.0}
_PERCENT = re.compile(r"(?P<sign>[+-]?)(?P<number>\d{1,3}(?:\.\d{1,4})?)%")
_FACTOR = re.compile(r"\d(?:\.\d{1,4})?")
_DECIBELS = re.compile(r"[+-]?\d{1,2}(?:\.\d{1,4})?dB", re.IGNORECASE)
_LEVEL = re.compile(r"\d{1,3}(?:\.\d{1,4})?")
_CHANGE = re.compile(r"[+-]\d{1,3}(?:\.\d{1,4})?")


class Pauses:
    """How long the pauses of one text may be."""

    def __init__(self) -> None:
        self._left = MOST_PAUSES
        self.warnings: list[str] = []

    def take(self, seconds: float) -> float:
        """The seconds of a pause that may be made of those that are asked for."""
        most = min(MOST_PAUSE, self._left)
        if seconds > most:
            self.warnings = [f"a pause has at most {MOST_PAUSE:g} s, and all of a text {MOST_PAUSES:g} s"]
        self._left -= min(seconds, most)
        return min(seconds, most)


def seconds_of(time: str | None, strength: str | None = None) -> float:
    """The length of a pause; `time` wins, and without any it is a medium one.

    Raises:
        ValueError: it is none.
    """
    if time is not None:
        found = _TIME.fullmatch(time.strip())
        if found is None:
            raise ValueError(f"the time {time[:40]!r} is none; it is like 500ms or 1.5s")
        return float(found[1]) / (1000 if found[2] == "ms" else 1)
    if (strength or "medium") not in _STRENGTHS:
        raise ValueError(f"the strength {str(strength)[:40]!r} is none of {', '.join(_STRENGTHS)}")
    return _STRENGTHS[strength or "medium"]


def rate_of(rate: str, relative: bool) -> float:
    """The factor of a tempo.

    Args:
        relative: a percentage without a sign is a change, as one with a sign always is.

    Raises:
        ValueError: it is none.
    """
    if rate in _RATES:
        return _RATES[rate]
    factor = _share(rate, relative)
    if factor is None and _FACTOR.fullmatch(rate):
        factor = float(rate)
    if factor is None:
        raise ValueError(f"the rate {rate[:40]!r} is none; it is like 1.2, +20% or fast")
    return factor


def gain_of(volume: str, relative: bool) -> float:
    """The factor of samples: of a name, of decibels, of a percentage, of a level from 0 to 100, or of a change of one.

    Raises:
        ValueError: it is none.
    """
    if volume in _VOLUMES:
        return _VOLUMES[volume]
    if _DECIBELS.fullmatch(volume):
        return float(10.0 ** (float(volume[:-2]) / 20))
    factor = _share(volume, relative)
    if factor is None and _LEVEL.fullmatch(volume) and float(volume) <= 100:
        factor = float(volume) / 100
    if factor is None and _CHANGE.fullmatch(volume):
        factor = max(0.0, 1 + float(volume) / 100)
    if factor is None:
        raise ValueError(f"the volume {volume[:40]!r} is none; it is like -6dB, 50 or soft")
    return factor


def _share(text: str, relative: bool) -> float | None:
    """The factor of a percentage, if it is one."""
    found = _PERCENT.fullmatch(text)
    if found is None:
        return None
    share = float(found["number"]) / 100
    if not found["sign"] and not relative:
        return share
    return max(0.0, 1 - share if found["sign"] == "-" else 1 + share)
