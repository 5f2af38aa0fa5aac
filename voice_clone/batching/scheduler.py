"""What the engine does next: which streams get slots, which pieces of prompts are read, which frames are made.

A stream that fails harms no other, and a GPU is kept busy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from voice_clone.batching.source import Frame, FrameSource, WaitForFrames
from voice_clone.batching.stream import MAX_UNSENT, Stream
from voice_clone.errors import Internal
from voice_clone.gpu import log_failure
from voice_clone.turns import Turns

GUARD = 0.35  # seconds of audio that a listener has left while its stream stands still
EVERY = 4  # one step in so many has all listeners' streams, even while one of them waits for a first chunk
HOLD = 2.0  # seconds; the longest time that batch work stands still for a listener, and for many one after the other
MAX_WAIT = 3600.0  # seconds; a deadline may be too far away for a system call to wait for it
PATIENCE = 1.0  # seconds; the longest time that a new stream waits because playback of others is about to run dry
NEW_PATIENCE = 0.1  # the same for a caller who hears nothing yet

log = logging.getLogger(__name__)

R = TypeVar("R")
Failed = Callable[[int, Exception], None]
"""Called with the slot of a stream that cannot go on, and why."""
Moved = Callable[[int, Stream[Any]], None]
"""Called with a slot and its stream after the stream has moved, or has a frame on its way."""
Made = list[tuple[int, Stream[Any], Frame]]


def seconds_to_wait(streams: Iterable[Stream[Any]], now: float) -> float:
    """Seconds until one of the streams has something to do, even if nothing else happens."""
    times = [at for stream in streams for at in stream.wake_at()]
    return min(max(0.0, min(times) - now), MAX_WAIT) if times else MAX_WAIT


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
        self.seconds = 0.0  # what the last piece took

    def next_count(self, stream: Stream[Any]) -> int:
        return min(stream.unread, self._chunk)

    def read(
        self,
        live: Mapping[int, Stream[Any]],
        names: Mapping[Stream[Any], str],
        step_seconds: float,
        moved: Moved,
        failed: Failed,
    ) -> Mapping[int, int]:
        """Read at most one chunk of positions, in the order of `live`, unless a listener would notice it.

        Returns: how many positions of which slots were read.

        Args:
            live: streams by slot.
            names: of their callers.
            step_seconds: what the last step took.
            moved, failed: called with streams of which a piece was read, or could not be.
        """
        began = self._clock()
        if not may_read(live.values(), names, began, self.seconds, step_seconds):
            return {}
        counts = self._next(live)
        read = self._read(counts, failed)
        for slot in read:
            stream = live[slot]
            stream.unread -= counts[slot]
            if not stream.unread:
                stream.prefilled = self._clock()
            moved(slot, stream)
        self.seconds = self._clock() - began
        return {slot: counts[slot] for slot in read}

    def _next(self, live: Mapping[int, Stream[Any]]) -> dict[int, int]:
        """How many positions of which slots are next: no more than the source reads in one step."""
        room, now, counts = self._chunk, self._clock(), dict[int, int]()
        for slot, stream in live.items():
            if len(counts) == self._source.prompts_at_once:
                break
            count = self.next_count(stream)
            if not count or stream.starved or stream.over(now):
                continue
            if count > room:
                break
            counts[slot] = count
            room -= count
        return counts

    def _read(self, counts: Mapping[int, int], failed: Failed) -> list[int]:
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


def may_read(
    live: Collection[Stream[Any]],
    names: Mapping[Stream[Any], str],
    now: float,
    read_seconds: float,
    step_seconds: float,
) -> bool:
    """Whether there are new streams, and reading a piece of their prompts makes no listener's playback run dry.

    A listener needs audio for the piece, for the step after it, and for one more step's time, which stands for
    decoding and transport. Streams that wait for text need nothing.

    Args:
        live: the streams in a slot.
        names: of their callers.
        read_seconds, step_seconds: what the last piece and the last step took.
    """
    able = [stream for stream in live if not stream.starved]
    hear = {names[stream] for stream in live if stream.chunks}
    unread = [stream for stream in able if stream.unread]
    for stream in unread:
        patience = PATIENCE if names[stream] in hear else NEW_PATIENCE
        late = now - (stream.resumed or stream.started or now) > patience
        if overdue(stream, now) or (late and not stream.caller.batch):
            return True
    enough = read_seconds + 2.0 * step_seconds
    leads = [stream.lead(now) for stream in able if stream.unsent < MAX_UNSENT]
    return bool(unread) and all(lead is None or lead > enough for lead in leads)


def overdue(stream: Stream[Any], now: float) -> bool:
    """Whether a stream is batch work for which nothing was done for so long that it goes on beside listeners."""
    return stream.caller.batch and now - stream.worked > HOLD


def listener_waits(live: Iterable[Stream[Any]], now: float) -> bool:
    """Whether batch work stands still, because a listener waits for the first chunk of one of these streams.

    A stream holds it up for `HOLD` seconds: its first chunk may be all of its speech.
    """
    return any(each.urgent and now - (each.resumed or each.started or now) <= HOLD for each in live)


def taking_part(
    slots: Sequence[int],
    live: Mapping[int, Stream[Any]],
    names: Mapping[Stream[Any], str],
    now: float,
    step_seconds: float,
    count: int,
) -> Sequence[int]:
    """The slots that take part in a step, of those that could.

    While a listener waits for the first chunk of a stream, streams of other callers stand still as long as their own
    listeners notice nothing. One step in `EVERY` has all streams.

    Args:
        slots: of the streams that could make a frame.
        live: the streams by slot.
        names: of their callers; streams of one name never wait for each other.
        step_seconds: what the last step took.
        count: of the steps so far.
    """
    urgent = {names[live[slot]] for slot, stream in live.items() if stream.urgent}
    if not urgent or count % EVERY == 0 or len({names[stream] for stream in live.values()}) < 2:
        return slots

    def takes_part(stream: Stream[Any]) -> bool:
        if stream.urgent or stream.caller.batch:
            return True
        lead = stream.lead(now)
        return names[stream] in urgent or lead is None or lead < GUARD + 2.0 * step_seconds

    return [slot for slot in slots if takes_part(live[slot])]


def first_in_turn(
    slots: Sequence[int], live: Mapping[int, Stream[Any]], turns: Turns[Stream[Any]], now: float
) -> Sequence[int]:
    """The slots of the caller whose turn it is, of those that could take part in a step; overdue ones go first."""
    slots = [slot for slot in slots if overdue(live[slot], now)] or slots
    ranks = {slot: turns.rank(live[slot]) for slot in slots}
    first = min(ranks.values(), default=None)
    return [slot for slot in slots if ranks[slot] == first]


class SourceSteps:
    """The steps of one source; for the engine's thread.

    The next step of a source that works ahead is begun before the frames of this one are looked at. If a stream ends
    with this one, the frame that was begun for it is dropped.
    """

    def __init__(self, source: FrameSource[Any]) -> None:
        self._source = source
        self._begun: list[tuple[list[tuple[int, Stream[Any]]], WaitForFrames]] = []

    @property
    def on_the_way(self) -> bool:
        """Whether there are frames that the engine has not looked at."""
        return bool(self._begun)

    def has(self, stream: Stream[Any]) -> bool:
        """Whether a frame of this stream is among them."""
        return any(each is stream for streams, _ in self._begun for _, each in streams)

    def drop(self) -> None:
        """Forget the frames that the engine has not looked at."""
        self._begun = []

    def run(
        self,
        slots: Sequence[int],
        live: Mapping[int, Stream[Any]],
        moved: Moved,
        failed: Failed,
    ) -> Made:
        """Begin the next frame of each slot, and wait for the frames of this step, or of the one before.

        Args:
            live: the streams by slot; frames of others are dropped.
        """
        steps = [([(slot, live[slot]) for slot in part], wait) for part, wait in begin(self._source, slots, failed)]
        if self._source.ahead:
            for slot, stream in (pair for streams, _ in steps for pair in streams):
                moved(slot, stream)
            steps, self._begun = self._begun, steps
        made = [(*pair, frame) for streams, wait in steps for pair, frame in zip(streams, wait(), strict=True)]
        return [(slot, stream, frame) for slot, stream, frame in made if frame is not None and live.get(slot) is stream]


def begin(source: FrameSource[Any], slots: Sequence[int], failed: Failed) -> list[tuple[Sequence[int], WaitForFrames]]:
    """Begin the next frame of each slot; `failed` is called with the streams that cannot make one."""
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
