"""The marks of open streams, as the setting `mark` asks for them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voice_clone import compute
from voice_clone.codec.chunk import MARK_WISHES, MarkResult, MarkWish
from voice_clone.errors import Internal, InvalidArgument, Unsupported, VoiceCloneError
from voice_clone.gpu import log_failure
from voice_clone.settings import DecoderSettings

if TYPE_CHECKING:  # torch is imported where speech is marked
    from voice_clone.marking.marker import PerthMarker

Samples = NDArray[np.float32]
Outcome = Samples | VoiceCloneError

log = logging.getLogger(__name__)


@dataclass
class OpenMark:
    """The mark of one stream.

    Attributes:
        state: the marker's.
        required: the stream ends where it cannot be marked; else it goes on without a mark.
        result: `failed`: it goes on without a mark.
    """

    state: Any
    required: bool
    result: MarkResult = "marked"


class Marks:
    """Marks what was decoded."""

    def __init__(self, marker: PerthMarker, least: MarkWish) -> None:
        self._marker = marker
        self._least = least

    def open(self, wish: MarkWish = "off") -> OpenMark | None:
        """The mark of a stream before its first sample, of which its request wishes this; None: it gets none."""
        level = max(self._least, wish, key=MARK_WISHES.index)
        return None if level == "off" else OpenMark(self._marker.open(), level == "required")

    def apply(self, streams: Sequence[OpenMark | None], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Mark the next samples of different streams, in one batch; errors, and streams without a mark, pass through.

        Returns: for each stream as many samples as it had, or `Internal` if they must be marked and could not.
        """
        found = list(outcomes)
        ready: list[tuple[int, OpenMark, Samples]] = []  # with the place of the stream
        for place, (stream, outcome) in enumerate(zip(streams, outcomes, strict=True)):
            if stream is not None and stream.result == "marked" and not isinstance(outcome, VoiceCloneError):
                ready.append((place, stream, outcome))
        if not ready:
            return found
        try:
            marked = self._marker.mark([stream.state for _, stream, _ in ready], [samples for _, _, samples in ready])
        except Exception as error:
            if len(ready) > 1:
                return [self.apply([stream], [one])[0] for stream, one in zip(streams, outcomes, strict=True)]
            log_failure(log, error, "a stream could not be marked")
            [(place, stream, _)] = ready
            stream.result = "failed"
            if stream.required:
                found[place] = Internal("this speech could not be marked as synthetic; try again")
            return found
        for (place, _, _), samples in zip(ready, marked, strict=True):
            found[place] = samples
        return found

    def warm_up(self, sizes: Sequence[int], batches: Sequence[int]) -> None:
        """Mark silence in batches of these sizes, of chunks of so many samples."""
        for batch in batches:
            for samples in sizes:
                silence = [np.zeros(samples, np.float32) for _ in range(batch)]
                self._marker.mark([self._marker.open() for _ in silence], silence)


def mark_wish(given: Any) -> MarkWish:
    """Whether a stream is to be marked, as the request parameter `mark` says; None: it says nothing.

    Raises:
        InvalidArgument: it says something else.
    """
    if given is None:
        return "off"
    for wish in MARK_WISHES:
        if given == wish:
            return wish
    raise InvalidArgument(f"the parameter `mark` must be one of {', '.join(MARK_WISHES)}")


def refuse_without_marks(wish: MarkWish) -> None:
    """Refuse what a server that marks nothing cannot do.

    Raises:
        Unsupported: the request asks for a mark.
    """
    if wish != "off":
        raise Unsupported(
            f"this server marks no speech, and the request has `mark {wish}`; serve it with mark requested"
        )


def load_marks(settings: DecoderSettings, sample_rate: int) -> Marks | None:
    """What the setting `mark` asks for; None: nothing is marked.

    Raises:
        Unsupported: the weights of the mark are missing. Also where a mark is not required: a server that was asked to
            mark must not serve without.
    """
    if settings.mark == "off":
        return None
    from voice_clone.marking.marker import PerthMarker

    marker = PerthMarker(sample_rate, compute.device(settings))
    log.info("marks speech as synthetic: %s, %s", marker.name, settings.mark)
    return Marks(marker, "off" if settings.mark == "requested" else mark_wish(settings.mark))
