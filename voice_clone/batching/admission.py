"""Who gets a slot when, and how long an idle engine waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

from voice_clone.batching.stream import Stream

MAX_STARTS = 4  # streams that get a slot at once, where others wait while prompts are embedded
MAX_WAIT = 3600.0  # seconds; a deadline may be too far away for a system call to wait for it

R = TypeVar("R")


def take_waiting(
    waiting: deque[Stream[R]], live: Collection[int], slots: int, ahead: bool
) -> list[tuple[int, Stream[R]]]:
    """Take the next streams from the queue for the free ones of so many slots: a few, where others are `live`.

    A source that works `ahead`, on a GPU, always gets a few: the starts of all take longer there than a step, and the
    first prompts are read before them. On a CPU they take little beside a step.
    """
    free = [slot for slot in range(slots) if slot not in live]
    most = min(len(waiting), MAX_STARTS if live or ahead else slots)
    return [(slot, waiting.popleft()) for slot in free[:most]]


def seconds_to_wait(streams: Iterable[Stream[Any]], now: float) -> float:
    """Until one of the streams has something to do even if nothing else happens."""
    times = [at for stream in streams for at in stream.wake_at()]
    return min(max(0.0, min(times) - now), MAX_WAIT) if times else MAX_WAIT
