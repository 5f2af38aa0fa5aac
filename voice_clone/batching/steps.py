"""The steps of a source: a stream that fails harms no other, and a GPU is kept busy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from voice_clone.batching.source import Frame, FrameSource, WaitForFrames
from voice_clone.batching.stream import Stream
from voice_clone.errors import Internal
from voice_clone.gpu import log_failure

log = logging.getLogger(__name__)

Failed = Callable[[int, Exception], None]
"""Told of the slot of a stream that cannot make a frame."""
Begun = Callable[[int, Stream[Any]], None]
"""Told of each stream of a source that works ahead, with its slot, while its frame is on its way."""
Made = list[tuple[int, Stream[Any], Frame]]


class Steps:
    """For the engine's thread.

    The next step of a source that works ahead is begun before the frames of this one are looked at. A stream that ends
    with this one then has a frame begun that nobody gets.
    """

    def __init__(self, source: FrameSource[Any]) -> None:
        self._source = source
        self._begun: list[tuple[list[tuple[int, Stream[Any]]], WaitForFrames]] = []

    @property
    def on_the_way(self) -> bool:
        """Whether there are frames that nobody has looked at."""
        return bool(self._begun)

    def drop(self) -> None:
        """Forget the frames that nobody has looked at."""
        self._begun = []

    def run(
        self,
        slots: Sequence[int],
        live: Mapping[int, Stream[Any]],
        begun: Begun,
        failed: Failed,
    ) -> Made:
        """Begin the next frame of each slot, and wait for the frames of this step, or of the one before.

        Args:
            live: the streams by slot; frames of others are dropped.
        """
        steps = [([(slot, live[slot]) for slot in part], wait) for part, wait in begin(self._source, slots, failed)]
        if self._source.ahead:
            for slot, stream in (pair for streams, _ in steps for pair in streams):
                begun(slot, stream)
            steps, self._begun = self._begun, steps
        made = [(*pair, frame) for streams, wait in steps for pair, frame in zip(streams, wait(), strict=True)]
        return [(slot, stream, frame) for slot, stream, frame in made if frame is not None and live.get(slot) is stream]


def begin(source: FrameSource[Any], slots: Sequence[int], failed: Failed) -> list[tuple[Sequence[int], WaitForFrames]]:
    """Begin the next frame of each slot; `failed` is told of the streams that cannot make one."""
    if not slots:
        return []
    try:
        return [(slots, source.begin(slots))]
    except Exception as error:
        log_failure(log, error, "a step of %d streams failed", len(slots))
        if len(slots) == 1:
            failed(slots[0], Internal("the step of this stream failed; try again"))
            return []
        # No stream has moved. A step for each alone shows which of them fails.
        return [part for slot in slots for part in begin(source, [slot], failed)]
