"""What an engine does that finds the words of a known text in its speech."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from voice_clone_words.units import Unit as Unit

Samples = NDArray[np.float32]


class Refused(Exception):
    """An engine does not align this speech; the message says why, for the caller."""


@dataclass(frozen=True)
class Interval:
    """When a unit is spoken.

    Attributes:
        start, end: samples [start, end) at the rate of the speech.
        confidence: 0 to 1, or None if the engine has none.
    """

    start: int
    end: int
    confidence: float | None = None


class Alignment(Protocol):
    """One speech that is being aligned. It is used by one thread at a time."""

    def feed(self, samples: Samples) -> Sequence[Interval]:
        """Take the next samples, any number of them, mono, full scale 1.

        Returns:
            The intervals of the units that are settled by now, from the first one after those of earlier calls; they
            do not change any more. An engine that needs the whole speech returns none.

        Raises:
            Refused: the engine cannot go on.
        """

    def end(self) -> Sequence[Interval]:
        """The speech has no more samples.

        Returns:
            The intervals of all units, in their order; starts do not fall, and no interval ends after the audio. Those
            that were settled before are among them, and other ones only if the engine had to look again.

        Raises:
            Refused: the text does not fit the speech, or there is none.
        """


class Engine(Protocol):
    """Aligns speeches of some languages; it may be used by several threads at once."""

    def start(self, units: Sequence[Unit], rate: int, language: str | None) -> Alignment:
        """Begin a speech.

        Args:
            units: of its text, at least one; each has a letter or a digit of some script, or is a symbol.
            rate: samples a second, 8,000 to 192,000.
            language: an ISO 639-1 code in lower case such as `en`, or None where it is unknown.

        Raises:
            Refused: the engine has not this language, or the text is none for it.
        """
