"""Reads the prompts of new streams, piece by piece, so that no listener of a live stream hears a gap for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from voice_clone.batching.source import FrameSource
from voice_clone.batching.stream import MAX_UNSENT, Stream

PATIENCE = 1.0  # seconds; the longest time that a new stream waits because playback of others is about to run dry


class Prompts:
    """The prompts of one source's streams; for the engine's thread.

    Args:
        chunk: positions that are read at once, and between two steps.
        clock: seconds, monotonic.
    """

    def __init__(self, source: FrameSource[Any], chunk: int, clock: Callable[[], float]) -> None:
        self._source = source
        self._chunk = chunk
        self._clock = clock
        self._seconds = 0.0  # what the last piece took

    def next_count(self, stream: Stream[Any]) -> int:
        """Positions of a stream's next piece."""
        return min(stream.unread, self._chunk)

    def read(
        self,
        live: Mapping[int, Stream[Any]],
        step_seconds: float,
        moved: Callable[[int, Stream[Any]], None],
        failed: Callable[[int, Exception], None],
    ) -> None:
        """Read at most one chunk of positions, the oldest stream first, unless a listener would notice it.

        Args:
            live: streams by slot.
            step_seconds: what the last step took.
            moved, failed: told of streams of which a piece was read, or could not be.
        """
        began = self._clock()
        if not may_read(live.values(), began, self._seconds, step_seconds):
            return
        counts = self._next(live)
        for slot in self._read(counts, failed):
            stream = live[slot]
            stream.unread -= counts[slot]
            if not stream.unread:
                stream.prefilled = self._clock()
            moved(slot, stream)
        self._seconds = self._clock() - began

    def _next(self, live: Mapping[int, Stream[Any]]) -> dict[int, int]:
        """How many positions of which slots are next: no more than the source reads in one step."""
        room, now, counts = self._chunk, self._clock(), dict[int, int]()
        for slot, stream in live.items():
            if len(counts) == self._source.prompts_at_once:
                break
            count = self.next_count(stream)
            if not count or stream.short or stream.over(now):
                continue
            if count > room:
                break
            counts[slot] = count
            room -= count
        return counts

    def _read(self, counts: Mapping[int, int], failed: Callable[[int, Exception], None]) -> list[int]:
        """Read so many positions; returns the slots of which they were read."""
        if not counts:
            return []
        try:
            self._source.prefill(counts)
        except Exception as error:
            if len(counts) == 1:
                [slot] = counts
                failed(slot, error)
                return []
            # No stream has moved. Each alone shows which of them fails.
            return [slot for slot, count in counts.items() if self._read({slot: count}, failed)]
        return list(counts)


def may_read(live: Collection[Stream[Any]], now: float, read_seconds: float, step_seconds: float) -> bool:
    """Whether there are new streams, and reading a piece of their prompts makes no listener's playback run dry.

    A listener needs audio for the piece, for the step after it, and for one more step's time, which stands for
    decoding and transport. Streams that wait for text need nothing.

    Args:
        live: the streams in a slot.
        read_seconds, step_seconds: what the last piece and the last step took.
    """
    able = [stream for stream in live if not stream.short]
    waiting = [stream.resumed or stream.started or now for stream in able if stream.unread]
    if not waiting or now - min(waiting) > PATIENCE:
        return bool(waiting)
    enough = read_seconds + 2.0 * step_seconds
    leads = [stream.lead(now) for stream in able if stream.unsent < MAX_UNSENT]
    return all(lead is None or lead > enough for lead in leads)
