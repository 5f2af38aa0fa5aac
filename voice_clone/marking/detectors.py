"""What looks for marks of synthetic speech: each detector that is installed.

A package adds one by an entry point of the group `voice_clone.mark_detectors`. Its name is the kind of the mark, and it
names a class whose constructor takes the device: a `Detector`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import Unsupported

log = logging.getLogger(__name__)

GROUP = "voice_clone.mark_detectors"
SHORTEST = 0.1  # seconds


@dataclass(frozen=True)
class Detection:
    """What was found.

    Attributes:
        mark: the kind of the mark; None if the sound has none.
        confidence: 0 to 1; of the piece that has the most.
        speed: at which the marked sound is played; 1 where it has no mark.
        start, seconds: of that piece.
    """

    mark: str | None
    confidence: float
    speed: float
    start: float
    seconds: float

    @property
    def marked(self) -> bool:
        return self.mark is not None


class Detector(Protocol):
    """Looks for one kind of mark."""

    def pieces(self, waveform: NDArray[np.float32], rate: int) -> Iterator[Detection]:
        """What is found in each piece of a sound, one after the other; between pieces other callers have their turn.

        Args:
            waveform: float32 [samples], mono, of `SHORTEST` or more.
            rate: Hz.
        """


def likeliest(found: Iterable[Detection]) -> Detection:
    """Of all that was found in a sound, what most likely is a mark."""
    return max(found, key=lambda each: (each.marked, each.confidence))


def detect(detectors: Sequence[Detector], waveform: NDArray[np.float32], rate: int) -> Detection:
    """Look for any mark. Args: as `Detector.pieces`."""
    return likeliest(piece for detector in detectors for piece in detector.pieces(waveform, rate))


def installed_detectors(device: str = "cpu") -> list[Detector]:
    """Load all detectors.

    Args:
        device: where they compute.

    Raises:
        Unsupported: none can be loaded; it says what the first one lacks.
    """
    found: list[Detector] = []
    failed: list[Unsupported] = []
    for point in entry_points(group=GROUP):
        try:
            found.append(point.load()(device))
        except Unsupported as error:
            log.warning("marks of the kind %s are not looked for: %s", point.name, error)
            failed.append(error)
    if not found:
        raise failed[0] if failed else Unsupported("no detector of marks is installed here; install resemble-perth")
    return found
