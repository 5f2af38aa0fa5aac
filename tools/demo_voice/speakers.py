"""The speakers of the training data: variations of the synthesiser's voices in vocal tract, pitch and pace."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Speaker:
    """One speaker.

    Attributes:
        name: unique.
        voice: of flite.
        formants: factor on all frequencies of the vocal tract, by resampling.
        pitch: mean in Hz; None: the voice's own, moved with the formants. The voice rms takes no other.
        spread: standard deviation of the pitch in Hz.
        stretch: factor on the durations.
        held_out: never trained on.
    """

    name: str
    voice: str
    formants: float
    pitch: float | None
    spread: float
    stretch: float
    held_out: bool


# Beyond these factors recognisers misunderstand even the synthesiser itself.
_RANGE = (0.92, 0.97, 1.03, 1.09, 1.15)
_FORMANTS = {"slt": (0.885, 0.93, 0.975, 1.02, 1.065), "awb": _RANGE, "kal16": _RANGE}
_PITCHES = {"slt": (150, 165, 180, 215), "awb": (95, 110, 125, 160), "kal16": (85, 98, 112, 148)}
_HELD_OUT = {(0, 3), (3, 0)}  # (place in _FORMANTS, place in _PITCHES)
_MOVED = tuple(0.865 * 1.055**step for step in range(8))  # of rms
_MOVED_HELD_OUT = {2, 6}
_STRETCH = {"slt": 1.0, "awb": 1.12, "rms": 1.0, "kal16": 1.25}  # about one pace for all voices
_PACE = (1.05, 1.25)  # factors on it


def speakers() -> list[Speaker]:
    """All speakers, those held out among them; always the same."""
    chance = random.Random(20)
    found = []
    for voice, pitches in _PITCHES.items():
        for place, formants in enumerate(_FORMANTS[voice]):
            for level, pitch in enumerate(pitches):
                spread = pitch * chance.uniform(0.06, 0.16)
                stretch = _STRETCH[voice] * chance.uniform(*_PACE)
                name = f"{voice}-{place}{level}"
                found.append(Speaker(name, voice, formants, pitch, spread, stretch, (place, level) in _HELD_OUT))
    for place, formants in enumerate(_MOVED):
        stretch = _STRETCH["rms"] * chance.uniform(*_PACE)
        found.append(Speaker(f"rms-{place}", "rms", formants, None, 0.0, stretch, place in _MOVED_HELD_OUT))
    return found
