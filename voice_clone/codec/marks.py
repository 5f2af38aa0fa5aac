"""The marks of open streams, as the setting `mark` asks for them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone import compute
from voice_clone.codec.chunk import MarkResult
from voice_clone.errors import Internal, VoiceCloneError
from voice_clone.gpu import log_failure
from voice_clone.marking.marker import PerthMarker, StreamMarker
from voice_clone.settings import DecoderSettings

Samples = NDArray[np.float32]
Outcome = Samples | VoiceCloneError

log = logging.getLogger(__name__)


@dataclass
class OpenMark:
    """The mark of one stream.

    Attributes:
        state: the marker's.
        result: `failed`: the stream goes on without a mark.
    """

    state: Any
    result: MarkResult = "marked"


class Marks:
    """Marks what was decoded.

    Args:
        marker: marks streams.
        required: a stream that cannot be marked ends; else it goes on without a mark.
    """

    def __init__(self, marker: StreamMarker, required: bool) -> None:
        self._marker = marker
        self._required = required

    def open(self) -> OpenMark:
        """The mark of a stream before its first sample."""
        return OpenMark(self._marker.open())

    def apply(self, streams: Sequence[OpenMark], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Mark the next samples of different streams, in one batch; errors pass through.

        Returns: for each stream as many samples as it had, or `Internal` if they must be marked and could not.
        """
        found = list(outcomes)
        ready: dict[int, Samples] = {}  # by the place of the stream
        for place, (stream, outcome) in enumerate(zip(streams, outcomes, strict=True)):
            if stream.result == "marked" and not isinstance(outcome, VoiceCloneError):
                ready[place] = outcome
        try:
            marked = self._marker.mark([streams[place].state for place in ready], list(ready.values()))
        except Exception as error:
            if len(ready) > 1:
                return [self.apply([stream], [one])[0] for stream, one in zip(streams, outcomes, strict=True)]
            log_failure(log, error, "a stream could not be marked")
            [place] = ready
            streams[place].result = "failed"
            if self._required:
                found[place] = Internal("this speech could not be marked as synthetic; try again")
            return found
        for place, samples in zip(ready, marked, strict=True):
            found[place] = samples
        return found

    def warm_up(self, sizes: Sequence[int], batches: Sequence[int]) -> None:
        """Mark silence in batches of these sizes, of chunks of so many samples."""
        for batch in batches:
            for samples in sizes:
                silence = [np.zeros(samples, np.float32) for _ in range(batch)]
                self._marker.mark([self._marker.open() for _ in silence], silence)


def load_marks(settings: DecoderSettings, sample_rate: int) -> Marks | None:
    """What the setting `mark` asks for; None: nothing is marked.

    Raises:
        Unsupported: the weights of the mark are missing. Also where a mark is not required: a server that was asked to
            mark must not serve without.
    """
    if settings.mark == "off":
        return None
    marker = PerthMarker(sample_rate, compute.device(settings))
    log.info("marks speech as synthetic: %s, %s", marker.name, settings.mark)
    return Marks(marker, settings.mark == "required")
