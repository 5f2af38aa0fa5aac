"""One step of a source, in which a stream that fails harms no other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from voice_clone.batching.stream import Frame, FrameSource
from voice_clone.errors import Internal

log = logging.getLogger(__name__)


def frames_of(
    source: FrameSource[Any], slots: Sequence[int], failed: Callable[[int, Exception], None]
) -> list[tuple[int, Frame]]:
    """The next frame of each slot; `failed` is told of the streams that cannot make one."""
    if not slots:
        return []
    try:
        frames = source.step(slots)
    except Exception as error:
        log.error("a step of %d streams failed", len(slots), exc_info=error)
        if len(slots) == 1:
            failed(slots[0], Internal("the step of this stream failed; try again"))
            return []
        # No stream has moved. A step for each alone shows which of them fails.
        return [pair for slot in slots for pair in frames_of(source, [slot], failed)]
    return list(zip(slots, frames, strict=True))
