"""The engine: one thread that advances all live streams by one frame a step.

submit ──> queue ──> slot ──> prefill ──> step, step, ... ──> outbox ──> sink
          (bounded)         (in chunks,     (batched)      (its own thread)
                           between steps)
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from voice_clone.batching.expected import ARRIVAL, NOTICE, Expected
from voice_clone.batching.outbox import Levels, Outbox
from voice_clone.batching.scheduler import (
    Prompts,
    SourceSteps,
    first_in_turn,
    listener_waits,
    overdue,
    seconds_to_wait,
    taking_part,
)
from voice_clone.batching.source import FrameSource
from voice_clone.batching.statistics import Statistics
from voice_clone.batching.stream import MAX_UNSENT, FrameChunk, Sink, Stream, View
from voice_clone.errors import Cancelled, Internal, InvalidArgument, Overloaded, VoiceCloneError
from voice_clone.gpu import Work, end_if_fatal, log_failure, start_thread
from voice_clone.turns import PLAIN, Caller, Turns

R = TypeVar("R")

MAX_STARTS = 4  # streams that get a slot at once, where others wait while prompts are embedded
AHEAD = 3.0  # seconds of audio that a listener has left when its stream gives its slot to a caller that has none
HAND_OVER = 0.003  # seconds; the longest time that the next frame waits for a stream's first chunk to be sent

log = logging.getLogger(__name__)


class Engine(Generic[R]):
    """Runs the streams of one `FrameSource`. Whatever fails, every stream ends, and the engine goes on.

    Args:
        source: makes the frames; used by the engine's thread alone.
        schedule: frames of a stream's chunks; the last number repeats.
        frame_seconds: how long a frame is heard; a chunk goes out before it is full where its listener would hear a
            gap otherwise. 0: never.
        max_queue: streams that may wait for a slot.
        prefill_chunk: positions of a prompt that are read between two steps, which bounds how long a new stream
            delays the live ones. A prompt is always cut at the multiples of this number.
        statistics: what is counted and timed.
        clock: seconds, monotonic; deadlines are on it.
        spare_slots: of the source's slots, so many are kept for callers that have fewer slots than their share.
        warm_up: runs first, on the engine's thread; what it raises, the constructor raises.
        news: as of `Expected`; the ids of listeners' streams that will be submitted soon.

    Attributes:
        turns: of the streams that wait for a slot, and of those that have one.
        parked: those that gave their slots to other callers, and wait for text or for a slot.
        streams: all that have not ended, by their ids.
    """

    def __init__(
        self,
        source: FrameSource[R],
        schedule: Sequence[int],
        max_queue: int,
        frame_seconds: float = 0.0,
        prefill_chunk: int = 256,
        statistics: Statistics | None = None,
        clock: Callable[[], float] = time.monotonic,
        spare_slots: int = 0,
        warm_up: Work | None = None,
        news: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._source = source
        self._clock = clock
        self._schedule = tuple(schedule)
        self._max_queue = max_queue
        self._frame_seconds = frame_seconds
        self._usual_slots = source.slots - spare_slots
        self.turns: Turns[Stream[R]] = Turns(clock)
        self._live: dict[int, Stream[R]] = {}  # by slot, in the order of arrival
        self.parked: list[Stream[R]] = []
        self.streams: dict[str, Stream[R]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._expected = Expected(news, clock)
        self._prompts = Prompts(source, prefill_chunk, clock)
        self._steps = SourceSteps(source)
        self._step_seconds = 0.0  # what the last step took
        self._count = 0  # of steps
        self._thread = start_thread("engine", self._run, warm_up)
        # After the warm-up: if that fails, no thread of it stays. No stream comes before.
        self._outbox = Outbox(self._delivered, self._abandoned, self._levels, statistics, clock)

    def submit(
        self,
        stream_id: str,
        request: R,
        sink: Sink,
        deadline: float | None = None,
        text_open: bool = False,
        schedule: Sequence[int] | None = None,
        caller: Caller = PLAIN,
    ) -> None:
        """Queue a stream; its chunks, or its failure, go to `sink`.

        Args:
            deadline: on the engine's clock; a stream that is not done by then fails with DeadlineExceeded.
            text_open: its text may be extended. Where it ends for now, the stream waits in its slot.
            schedule: frames of its chunks in place of the engine's; then no chunk goes out before it is full.
            caller: for whom it is. Callers take turns, and where the queue is full the newest stream of the one that
                has most waiting gives its place to one that has fewer.

        Raises:
            Overloaded: the queue is full, and no other caller has more waiting; or the engine is closing.
            InvalidArgument: a stream of this id is live.
        """
        stream = Stream(
            stream_id,
            request,
            sink,
            schedule or self._schedule,
            self._source.payload,
            0.0 if schedule else self._frame_seconds,
            deadline,
            self._clock,
            text_open,
            caller,
        )
        try:
            with self._changed:
                if self._closing:
                    raise Overloaded("the server is shutting down; ask another one, or later")
                if stream_id in self.streams:
                    raise InvalidArgument("a stream of this stream_id is live; every stream needs its own")
                free = max(0, self._usual_slots - len(self._live))  # waiting streams get these after the step
                if len(self.turns) >= self._max_queue + free:
                    newest = self.turns.push_out(caller)
                    if newest is None or newest.started is not None:
                        raise Overloaded(f"{self._max_queue} streams are waiting already; try again later")
                    self._end(newest, Overloaded("the queue is full, and others have less waiting; try again later"))
                self._outbox.open(stream)
                self.turns.put(stream, caller)
                self.streams[stream_id] = stream
                self._changed.notify()
        except Overloaded as error:
            self._outbox.refused(stream, error)
            raise

    def extend(self, stream_id: str, more: Any, last: bool) -> bool:
        """Append what `FrameSource.extend` takes to the text of a stream; `last` closes it.

        Returns: false if there is no such stream, or it has ended.
        """
        with self._changed:
            stream = self.streams.get(stream_id)
            if stream is None:
                return False
            stream.more.append(more)
            stream.text_closed = last
            self._changed.notify()
            return True

    def look(self, stream_id: str) -> View | None:
        """What a stream does now; None if there is none."""
        with self._changed:
            stream = self.streams.get(stream_id)
            return None if stream is None else stream.view

    def cancel(self, stream_id: str, error: VoiceCloneError | None = None) -> bool:
        """End a stream at the next frame boundary, with `error` if it did not leave; returns whether there was one."""
        with self._changed:
            stream = self.streams.get(stream_id)
            if stream is None:
                return False
            stream.stopped = error or Cancelled("the stream was cancelled")
            self._changed.notify()
            return True

    def close(self) -> None:
        """Finish the live and waiting streams, then stop. Further submissions are refused, and open texts fail."""
        with self._changed:
            self._closing = True
            for stream in self.streams.values():
                if stream.text_follows and not stream.text_closed:
                    stream.stopped = Overloaded("the server is shutting down, and the text of this stream is not whole")
            self._changed.notify()
        self._thread.join()
        self._outbox.join()

    def drain(self, seconds: float) -> None:
        """As `close`; streams that take longer than this fail with Overloaded."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)
        with self._changed:
            for stream in self.streams.values():
                stream.stopped = Overloaded("the server is shutting down and could not wait for the end of this stream")
            self._changed.notify()
        self.close()

    def _run(self) -> None:
        while True:
            try:
                if not self._admit():
                    break
                self._extend()
                self._read_prompts()
                self._step()
            except Exception as error:
                log_failure(log, error, "the engine failed; all its streams end")
                self._fail_all()
        self._outbox.close()

    def _admit(self) -> bool:
        """Wait for work and fill free slots; False when the engine is closed and idle."""
        with self._changed:
            while not self._busy():
                if self._closing and not self.streams:
                    return False
                seconds = seconds_to_wait(self.streams.values(), self._clock())
                if any(stream.caller.batch for stream in self.streams.values()):  # nothing tells when it may go on
                    seconds = min(seconds, self._expected.seconds() or NOTICE)
                self._changed.wait(seconds)
            now = self._clock()
            for stream in [stream for stream in [*self.turns, *self.parked] if stream.over(now)]:
                self._end(stream, stream.over(now))
            for stream in [stream for stream in self.parked if stream.starved and stream.more]:
                self.parked.remove(stream)
                stream.set_starved(False, now)
                self.turns.put(stream, stream.caller, first=True)
            joining = self._take_waiting()
        for slot, stream in joining:
            stream.worked = self._clock()
            if stream.caller.urgency == "interactive":
                self._expected.come(stream.id)
            try:
                if stream.parked is not None:
                    self._source.resume(slot, stream.parked)
                    stream.parked = None
                    continue
                stream.started = self._clock()
                stream.unread = stream.prompt_positions = self._source.start(slot, stream.request)
                if not stream.unread:  # a source without prompts that are read piece by piece
                    stream.prefilled = self._clock()
                if stream.urgent and any(each.caller.batch for each in self._live.values()):
                    self._outbox.announce(stream)
            except Exception as error:
                with self._changed:
                    del self._live[slot]
                    self._end(stream, error)
        return True

    def _take_waiting(self) -> list[tuple[int, Stream[R]]]:
        """Give free slots to the next streams of the queue: to a few, where others wait while prompts are embedded.

        A source that works ahead, on a GPU, always gets a few: the starts of all take longer there than a step, and the
        first prompts are read before them. On a CPU they take little beside a step.
        """
        joining: list[tuple[int, Stream[R]]] = []
        waiting = [stream for stream in self.parked if not stream.starved]
        for each in waiting[: self._source.slots - len(self._live)]:
            self.parked.remove(each)
            self._join(each, joining)
        most = MAX_STARTS if self._live or self._source.ahead else self._source.slots
        while len(joining) < most and (stream := self.turns.take(self._may_start)) is not None:
            self._join(stream, joining)
        return joining

    def _join(self, stream: Stream[R], joining: list[tuple[int, Stream[R]]]) -> None:
        """Give a slot to a stream: a free one, or another caller's."""
        free = [slot for slot in range(self._source.slots) if slot not in self._live]
        slot = free[0] if free else self._park(stream.caller)
        self._live[slot] = stream
        joining.append((slot, stream))

    def _may_start(self, stream: Stream[R], running: int) -> bool:
        """Whether there is a slot for a stream whose caller has so many: a usual or a spare one, or one that another
        stream does not need now. The last spare one is for a caller that has none. Batch work that would stand still
        waits, and a listener's stream does not wait for batch work of its caller.
        """
        now = self._clock()
        if stream.caller.batch and not overdue(stream, now) and self._holds(now):
            return False
        if len(self._live) < self._usual_slots:
            return True
        running -= sum(s.caller.batch and s.caller.name == stream.caller.name for s in self.turns.names())
        if stream.caller.batch or running >= self._share:
            return False
        spare = self._source.slots - len(self._live)
        return spare > bool(running) or self._unneeded(stream.caller) is not None

    def _moving(self) -> dict[int, Stream[R]]:
        """The live streams without batch work that stands still for a listener."""
        now = self._clock()
        if not any(stream.caller.batch for stream in self._live.values()) or not self._holds(now):
            return self._live
        return {slot: s for slot, s in self._live.items() if not s.caller.batch or overdue(s, now)}

    def _holds(self, now: float) -> bool:
        """Whether batch work stands still for a listener, of a stream or expected."""
        return listener_waits(self._live.values(), now) or self._expected.seconds() > 0.0

    @property
    def _share(self) -> int:
        """The slots of each caller, if all have as many."""
        return max(1, self._usual_slots // self.turns.active)

    def _unneeded(self, caller: Caller) -> int | None:
        """The slot of another caller's stream that waits for text, or, for a caller that no listener's stream has one
        of, of one whose listener has audio for long, or that has none, and whose caller has more than its share, or is
        the same. None: there is none.
        """
        names, share, now = self.turns.names(), self._share, self._clock()
        held = Counter(names[stream] for stream in self._live.values())
        wait = sum(not stream.starved for stream in self.parked)
        mine = [stream for stream in self._live.values() if stream.caller.name == caller.name]
        may_wait = all(stream.caller.batch for stream in mine) and wait < self._source.slots - self._usual_slots

        def needless(stream: Stream[R]) -> bool:
            if stream.started is None:  # it has got its slot now, and the source knows nothing of it
                return False
            if stream.parked is not None or self._steps.has(stream):
                return False
            if stream in mine and not stream.caller.batch:
                return False
            if stream.starved:
                return len(self.parked) < self._max_queue
            return may_wait and (stream in mine or held[names[stream]] > share) and may_pause(stream) > AHEAD

        def may_pause(stream: Stream[R]) -> float:
            return math.inf if stream.caller.batch else stream.lead(now) or 0.0

        def rank(slot: int) -> tuple[bool, int, float]:
            stream = self._live[slot]
            return stream.starved, held[names[stream]], may_pause(stream)

        return max((slot for slot, stream in self._live.items() if needless(stream)), key=rank, default=None)

    def _park(self, caller: Caller) -> int:
        """Take a slot for a caller from a stream that does not need it. That one goes on in any slot, when its text
        comes; if it has text, before all others, and until then its caller has one turn less.
        """
        slot = self._unneeded(caller)
        assert slot is not None
        stream = self._live.pop(slot)
        stream.parked = self._source.park(slot)
        self.parked.append(stream)
        if stream.starved:
            self.turns.leave(stream)
        return slot

    def _busy(self) -> bool:
        now = self._clock()
        if len(self.turns) and (self.turns.may_take(self._may_start) or any(s.over(now) for s in self.turns)):
            return True
        free = len(self._live) < self._source.slots
        begun = [*self._live.values(), *(stream for stream in self.parked if stream.starved or free)]
        still = set(self._live.values()).difference(self._moving().values())
        return self._steps.on_the_way or any(s.more or s.over(now) or (s.moves(now) and s not in still) for s in begun)

    def _extend(self) -> None:
        """Hand on the text that came, and see which streams lack some."""
        for slot, stream in list(self._live.items()):
            if not stream.text_follows:
                continue
            with self._changed:
                more, closed = stream.take_text()
            try:
                for each in more:
                    self._source.extend(slot, each)
            except Exception as error:
                self._leave(slot, error)
                continue
            stream.text_follows = not closed
            self._note_starved(slot, stream)

    def _note_starved(self, slot: int, stream: Stream[R]) -> None:
        """Note whether a stream lacks text."""
        if stream.text_open:
            ready = not stream.text_follows or self._source.ready(slot, self._prompts.next_count(stream))
            stream.set_starved(not ready, self._clock())

    def _read_prompts(self) -> None:
        """Read a piece of the prompts, first those of the caller who has got least."""
        if not any(stream.unread for stream in self._live.values()):
            return
        live = dict(sorted(self._moving().items(), key=lambda each: self.turns.rank(each[1])))
        counts = self._prompts.read(live, self.turns.names(), self._step_seconds, self._note_starved, self._leave)
        for slot, count in counts.items():
            if slot in self._live:
                self._live[slot].worked = self._clock()
                self.turns.charge(self._live[slot], self._prompts.seconds * count / sum(counts.values()))

    def _step(self) -> None:
        now = self._clock()
        for slot, stream in list(self._live.items()):
            if error := stream.over(now):
                self._leave(slot, error)
        slots: Sequence[int] = [
            slot for slot, s in self._moving().items() if not (s.unread or s.starved) and s.unsent < MAX_UNSENT
        ]
        if self._source.one_by_one:
            slots = first_in_turn(slots, self._live, self.turns, now)
        elif not self._source.ahead and self._frame_seconds:  # elsewhere a step costs the same, whoever is in it
            self._count += 1
            slots = taking_part(slots, self._live, self.turns.names(), now, self._step_seconds, self._count)
        begun, frames = [], self._steps.run(slots, self._live, self._note_starved, self._leave)
        self._step_seconds = self._clock() - now
        self._charge(slots)
        for slot, stream, frame in frames:
            if frame.finish == "error":
                self._leave(slot, Internal("the model made no valid frame for this stream"))
                continue
            chunks = stream.add(frame)
            if frame.finish is not None:
                self._leave(slot)
            else:
                self._note_starved(slot, stream)
            for chunk in chunks:
                self._send(stream, chunk)
                if chunk.index == 0:
                    begun.append(stream)
                    if stream.caller.urgency == "interactive":
                        self._expected.add(stream.id, ARRIVAL)
        for stream in [*self._live.values(), *self.parked]:
            if stream.starved and stream.moves(self._clock()):
                self._send(stream, stream.flush())
        if begun and not self._source.ahead:  # the next frame would hold the GIL: the outbox thread could not send
            with self._changed:
                self._changed.wait_for(lambda: not any(s.unsent and not s.stopped for s in begun), HAND_OVER)

    def _charge(self, slots: Sequence[int]) -> None:
        """Charge a step to the streams in it; one that stands still pays for its slot."""
        taken = set(slots)
        for slot, stream in self._live.items():
            shares = self._usual_slots
            if slot in taken:
                shares = min(len(taken), self._usual_slots)
                stream.worked = self._clock()
            self.turns.charge(stream, self._step_seconds / shares)

    def _send(self, stream: Stream[R], chunk: FrameChunk) -> None:
        with self._changed:
            stream.unsent += 1
        self._outbox.put(stream, chunk)

    def _leave(self, slot: int, error: BaseException | None = None) -> None:
        """Free a slot; with `error` its stream failed, else its last chunk follows."""
        self._source.free(slot)
        with self._changed:
            self._end(self._live.pop(slot), error)

    def _end(self, stream: Stream[R], error: BaseException | None) -> None:
        del self.streams[stream.id]
        self.turns.leave(stream)
        if stream in self.parked:
            self.parked.remove(stream)
        if error is not None:
            end_if_fatal(error)
            self._outbox.put(stream, error)

    def _fail_all(self) -> None:
        """After a failure of unknown reach: end every stream, and start from an empty state."""
        with self._changed:
            streams = list(self.streams.values())
            self._steps.drop()
            self._live.clear()
            for stream in streams:
                self._end(stream, Internal("the server failed to make this stream; try again"))
        try:
            self._source.reset()
        except Exception:
            log.exception("the frame source could not be reset")

    def _delivered(self, stream: Stream[R]) -> None:
        with self._changed:
            stream.unsent -= 1
            if stream.unsent in (0, MAX_UNSENT - 1):
                self._changed.notify()

    def _abandoned(self, stream: Stream[R]) -> None:
        with self._changed:
            stream.stopped = Cancelled("the stream was cancelled")
            self._changed.notify()

    def _levels(self) -> Levels:
        with self._changed:
            return Levels(len(self._live), len(self.turns), sum(s.starved for s in self.streams.values()))
