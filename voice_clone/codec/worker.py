"""The decoding thread: chunks of all streams come in at any time, samples go out in each stream's order.

submit ──> ChunkQueue (bounded) ──> batch: the most urgent chunk and those of other streams with as many frames;
                                           on a GPU also those with fewer
                                ──> decode ──> ticket

Errors. Triton 2.51 never releases an ensemble's request if one of its steps answers with an error while another step is
in flight (fault: error-beside-step), and the talker is in flight as long as it makes frames. So a stream that ends
early gets no more samples, its talker is asked to stop, and the error travels with the stream's final chunk, when
nothing else is in flight. Only a caller of code2wav itself is refused at once (a wrong index, bad codes), and its
stream goes on.

References. `prepare` announces the reference of a stream while the talker still reads the prompt. Its state is computed
when the thread is idle, otherwise with the stream's first chunk.

Clients that leave. `abandon` asks the talker to stop at once; the stream's state is dropped before the next batch.

Order. A stream's chunks keep their order, because only the first one that waits can join a batch. The most urgent chunk
is the one whose listener's playback runs dry first. A stream's first chunk, and a chunk that ends a stream without
samples, go ahead of all listeners that have not waited for long. Batch work has no listener: the next one of its chunks
is due some seconds after it came and after the one before was taken. So chunks of batch work that have waited for long
go ahead of listeners one at a time.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from voice_clone.batching.expected import ARRIVAL, Expected
from voice_clone.batching.stream import Playback
from voice_clone.codec.chunk import CodecChunk, Decoded, MarkResult, Reference
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    Overloaded,
    VoiceCloneError,
)
from voice_clone.gpu import Work, log_failure, start_thread
from voice_clone.turns import PLAIN, Caller, may_have_more

FIRST_CHUNK_LEAD = 2.0  # seconds; a first chunk goes ahead of listeners that have waited for less
EXPECTED = 0.25  # seconds for which batch work waits for the first chunk of another stream
BATCH_LEAD = 2.0  # seconds until a chunk of batch work is due
RECENT = 10.0  # seconds
SWEEP_SECONDS = 1.0  # between two sweeps of idle streams
GONE = "the client gave the stream up"
MAX_REFERENCES = 16  # that wait for `prepare`
MAX_BROKEN = 4096  # streams that ended early and whose final chunk has not come yet

log = logging.getLogger(__name__)

Ending = Literal["finished", "cancelled", "failed", "idle"]


class Ticket(Protocol):
    """Where a chunk's samples go: `done`, `skip` or `fail` is called once."""

    def cancelled(self) -> bool:
        """Whether the client has left."""

    def done(self, decoded: Decoded) -> None:
        """The chunk's samples."""

    def skip(self) -> None:
        """There are none; the stream's final chunk says why."""

    def fail(self, error: BaseException) -> None:
        """There are none, because of `error`."""


@dataclass
class Entry:
    """A chunk that waits."""

    chunk: CodecChunk
    ticket: Ticket
    caller: Caller = PLAIN
    """For whom it is."""

    @property
    def frames(self) -> int:
        return len(self.chunk.payload)


class ChunkQueue:
    """The waiting chunks of all streams; not thread-safe.

    Args:
        sample_rate: Hz.
        clock: seconds, monotonic.
        news: as of `Expected`.
    """

    def __init__(
        self,
        sample_rate: int,
        clock: Callable[[], float] = time.monotonic,
        news: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._sample_seconds = 1 / sample_rate
        self._clock = clock
        self._waiting: dict[str, deque[Entry]] = {}  # by stream
        self._chunks = 0
        self._playback: dict[str, Playback] = {}  # by open stream
        self._callers: dict[Caller, float] = {}  # when a chunk of each came last
        self._batch_taken = -math.inf  # when the last chunk of batch work was
        self._expected = Expected(news, clock)

    def __len__(self) -> int:
        return self._chunks

    @property
    def streams(self) -> Collection[str]:
        return self._waiting.keys()

    def has_room(self, caller: str, most: int) -> bool:
        """Whether another chunk of a caller may wait, where `most` may."""
        if self._chunks < most:
            return True
        callers = [entry.caller.name for entries in self._waiting.values() for entry in entries]
        return may_have_more(callers, caller, most)

    def put(self, entry: Entry) -> None:
        """Behind the other chunks of its stream."""
        listened = entry.chunk.index == 0 and entry.caller.urgency == "interactive"
        if listened and self._expected.come(entry.chunk.stream_id):
            self._expected.add(entry.chunk.stream_id, ARRIVAL)
        self._waiting.setdefault(entry.chunk.stream_id, deque()).append(entry)
        self._callers[entry.caller] = self._clock()
        self._chunks += 1

    def expect(self, stream_id: str, announced: str = "") -> None:
        """The first chunk of a stream comes soon, and a listener waits for it: until then batch work waits, too.

        Args:
            announced: the id under which it was expected before.
        """
        self._expected.come(announced)
        self._expected.add(stream_id, EXPECTED)

    def ready_in(self) -> float:
        """Seconds until a chunk may be decoded that waits; infinite if none waits."""
        if not self._waiting:
            return math.inf
        now = self._clock()
        if any(not entries[0].caller.batch or self._due(entries[0]) <= now for entries in self._waiting.values()):
            return 0.0
        return self._expected.seconds()

    def take(self, count: int, ragged: bool = False) -> list[Entry]:
        """The most urgent chunk, and those of other streams with as many frames, the most urgent ones first.

        None, while only batch work waits and another stream's first chunk is expected.

        Where a listener speaks or is expected, and so does another caller or batch work, it is one chunk if ragged
        batches are not supported, as on a CPU: a batch takes as long there as its chunks one after the other, and the
        listener's next chunk would wait for it. A caller is expected to go on for `RECENT` seconds.

        Args:
            ragged: with as many frames or fewer. A longer chunk would keep the most urgent one waiting.
        """
        if self.ready_in() > 0.0:
            return []
        heads = sorted((entries[0] for entries in self._waiting.values()), key=self._order)
        if not ragged and self._one_by_one():
            count = 1
        most = heads[0].frames if heads else 0
        batch = [entry for entry in heads if entry.frames == most or (ragged and entry.frames < most)][:count]
        if any(entry.caller.batch for entry in batch):
            self._batch_taken = self._clock()
        for entry in batch:
            entries = self._waiting[entry.chunk.stream_id]
            entries.popleft()
            if not entries:
                del self._waiting[entry.chunk.stream_id]
        self._chunks -= len(batch)
        return batch

    def record_sent(self, stream_id: str, samples: int) -> None:
        """So many more samples were sent to a stream's listener."""
        self._playback.setdefault(stream_id, Playback(self._sample_seconds)).add(samples, self._clock())

    def forget(self, stream_id: str) -> Playback | None:
        """A stream has ended; its chunks that wait stay. Returns its playback; None if nothing was sent."""
        return self._playback.pop(stream_id, None)

    def _one_by_one(self) -> bool:
        """Whether one caller's listener would wait for chunks of another caller, or of batch work."""
        now = self._clock()
        self._callers = {caller: last for caller, last in self._callers.items() if last >= now - RECENT}
        listened = not all(caller.batch for caller in self._callers) or self._expected.seconds() > 0.0
        several = len({caller.name for caller in self._callers}) > 1
        return listened and (several or any(caller.batch for caller in self._callers))

    def _order(self, entry: Entry) -> tuple[float, float]:
        return self._due(entry), entry.chunk.arrived

    def _due(self, entry: Entry) -> float:
        """A chunk's due time; the most urgent chunk has the least."""
        if entry.caller.batch:
            return max(entry.chunk.arrived, self._batch_taken) + BATCH_LEAD
        if entry.chunk.index == 0 or not entry.frames:
            return entry.chunk.arrived - FIRST_CHUNK_LEAD
        playback = self._playback.get(entry.chunk.stream_id)
        return entry.chunk.arrived if playback is None or playback.until is None else playback.until


@dataclass
class Report:
    """What happened since the last report, and the levels now."""

    open_streams: int
    stream_bytes: int
    primed_bytes: int
    batch: int = 0  # chunks decoded together
    frames: int = 0  # of all of them
    decode_ms: float = 0.0  # of the batch
    primed_hits: int = 0
    primed_misses: int = 0
    endings: list[Ending] = field(default_factory=list)  # of streams
    playbacks: list[Playback] = field(default_factory=list)  # of those ended streams that were sent anything
    marks: list[MarkResult] = field(default_factory=list)  # of finished streams that were to be marked


class Observer(Protocol):
    """Receives reports. Its methods must neither wait nor raise."""

    def lost(self, stream_id: str) -> None:
        """A stream ended here before its final chunk: its talker should stop. Called from any thread."""

    def answered(self, stream_id: str) -> None:
        """A stream's final chunk has been answered. Called from the worker's thread."""

    def report(self, report: Report) -> None:
        """After each batch, and when streams ended without one. Called from the worker's thread."""


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """An exception inside goes to the log: a ticket that fails must not harm other streams."""
    try:
        yield
    except Exception as error:
        log.error("a chunk could not be answered", exc_info=error)


class Code2WavWorker:
    """Decodes on one thread of its own.

    Args:
        code2wav: the streams; used by that thread alone.
        max_queue: chunks that may wait; one more ends its stream.
        observer: gets the reports.
        clock: seconds, monotonic.
        warm_up: runs first, on that thread; what it raises, the constructor raises.
        news: as of `ChunkQueue`.
    """

    def __init__(
        self,
        code2wav: Code2Wav,
        max_queue: int,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
        warm_up: Work | None = None,
        news: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._clock = clock
        self._code2wav = code2wav
        self._max_queue = max_queue
        self._observer = observer
        self._waiting = ChunkQueue(code2wav.sample_rate, clock, news)
        self._references: deque[Reference] = deque(maxlen=MAX_REFERENCES)  # the oldest are dropped
        self._abandoned: set[str] = set()  # streams whose client has left
        self._alive: set[str] = set()  # streams that gave a sign of life since the last sweep
        self._broken: OrderedDict[str, VoiceCloneError] = OrderedDict()  # why streams ended early
        self._endings: list[Ending] = []
        self._playbacks: list[Playback] = []  # of ended streams
        self._marks: list[MarkResult] = []  # of finished streams
        self._swept = clock()
        self._closing = False
        self._changed = threading.Condition()
        self._thread = start_thread("code2wav", self._run, warm_up)

    @property
    def busy(self) -> bool:
        """Whether streams are open, or something waits."""
        with self._changed:
            return bool(self._waiting or self._references or self._abandoned or self._code2wav.streams)

    def submit(self, chunk: CodecChunk, ticket: Ticket, caller: Caller = PLAIN) -> None:
        """Queue a chunk of this caller's; returns at once."""
        with self._changed:
            if not self._waiting.has_room(caller.name, self._max_queue):
                full = Overloaded(f"{self._max_queue} chunks are waiting to be decoded already; try again later")
                # It waits like the others, without its frames: a stream is answered in order.
                chunk = replace(chunk, payload=chunk.payload[:0], context=chunk.context[:0], failure=full)
            self._waiting.put(Entry(chunk, ticket, caller))
            self._changed.notify()

    def prepare(self, reference: Reference) -> None:
        """A stream is about to begin with a reference; returns at once."""
        with self._changed:
            self._references.append(reference)
            self._changed.notify()

    def expect(self, stream_id: str, announced: str = "") -> None:
        """As `ChunkQueue.expect`; returns at once."""
        with self._changed:
            self._waiting.expect(stream_id, announced)

    def keep(self, stream_id: str) -> None:
        """A stream is alive, though it has no chunk; returns at once."""
        with self._changed:
            self._alive.add(stream_id)

    def abandon(self, stream_id: str) -> None:
        """End a stream whose client has left; returns at once. Each call asks the talker to stop."""
        self._observer.lost(stream_id)
        with self._changed:
            self._abandoned.add(stream_id)
            self._changed.notify()

    def close(self) -> None:
        """Decode what waits, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._observer.report(Report(0, 0, 0))

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._drop_abandoned()
                self._decode(batch)
                self._prepare()
                self._sweep()
            except Exception as error:
                log_failure(log, error, "a batch of %d chunks failed", len(batch))
                for entry in batch:
                    self._break(entry, Internal("the decoder failed on this stream; try again"), "failed")

    def _next(self) -> list[Entry] | None:
        """The next batch; an empty one when there is other work, or time to sweep; None when closed and done."""
        with self._changed:
            ready_in = self._waiting.ready_in()
            if ready_in > 0.0 and not (self._references or self._abandoned or self._closing):
                self._changed.wait(min(ready_in, SWEEP_SECONDS))
            if self._closing and not (self._waiting or self._abandoned):
                return None
            return self._waiting.take(self._code2wav.max_batch, self._code2wav.supports_ragged_batches)

    def _drop_abandoned(self) -> None:
        """Drop the streams whose clients have left."""
        with self._changed:
            abandoned, self._abandoned = self._abandoned, set()
        for stream_id in filter(self._code2wav.is_open, abandoned):
            self._end(stream_id, Cancelled(GONE), "cancelled")
        if self._endings:
            self._report()

    def _decode(self, batch: Sequence[Entry]) -> None:
        wanted = [entry for entry in batch if not self._answer_without_samples(entry)]
        began = self._clock()
        outcomes = self._code2wav.decode([entry.chunk for entry in wanted])
        spent = 1e3 * (self._clock() - began)
        decoded = []
        for entry, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, InvalidArgument):
                self._refuse(entry, outcome)
            elif isinstance(outcome, VoiceCloneError):
                self._break(entry, outcome, "failed")
            else:
                decoded.append((entry.chunk, outcome))
                self._answer(entry, outcome)
        if decoded or self._endings:
            primed = [outcome.primed for chunk, outcome in decoded if chunk.index == 0]
            frames = sum(len(chunk.payload) for chunk, _ in decoded)
            self._report(len(decoded), frames, spent, primed.count("hit"), primed.count("miss"))

    def _answer_without_samples(self, entry: Entry) -> bool:
        """Answer a chunk whose stream has ended, or ends with it; returns whether it did."""
        chunk = entry.chunk
        if chunk.index == 0:
            self._broken.pop(chunk.stream_id, None)  # a new stream with an old id
        if chunk.stream_id in self._broken:
            self._answer_broken(entry, self._broken[chunk.stream_id])
        elif chunk.failure is not None:
            self._break(entry, chunk.failure, "cancelled" if isinstance(chunk.failure, Cancelled) else "failed")
        elif chunk.index > 0 and entry.ticket.cancelled():  # asking takes a millisecond, too long for a first chunk
            self._break(entry, Cancelled(GONE), "cancelled")
        else:
            return False
        return True

    def _answer(self, entry: Entry, decoded: Decoded) -> None:
        try:
            entry.ticket.done(decoded)
        except Exception as error:
            log.error("a chunk could not be sent", exc_info=error)
            sent = error if isinstance(error, VoiceCloneError) else Internal("the samples could not be sent; try again")
            self._break(entry, sent, "failed")
            return
        stream_id = entry.chunk.stream_id
        self._waiting.record_sent(stream_id, len(decoded.waveform))
        if entry.chunk.final:
            self._count("finished", stream_id)
            if decoded.mark != "off":
                self._marks.append(decoded.mark)
            self._observer.answered(stream_id)

    def _refuse(self, entry: Entry, error: InvalidArgument) -> None:
        """Refuse a wrong chunk. A talker's stream ends with it; another one that is open goes on."""
        if entry.chunk.from_talker:
            self._break(entry, error, "failed")
            return
        with _logged():
            entry.ticket.fail(error)
        if not self._code2wav.is_open(entry.chunk.stream_id):
            self._waiting.forget(entry.chunk.stream_id)
            self._observer.lost(entry.chunk.stream_id)

    def _break(self, entry: Entry, error: VoiceCloneError, ending: Ending) -> None:
        """A chunk's stream ends with it, and with `error`."""
        self._end(entry.chunk.stream_id, error, ending)
        self._answer_broken(entry, error)
        if not entry.chunk.final:
            self._observer.lost(entry.chunk.stream_id)

    def _end(self, stream_id: str, error: VoiceCloneError, ending: Ending) -> None:
        self._code2wav.drop(stream_id)
        self._count(ending, stream_id)
        self._broken[stream_id] = error
        if len(self._broken) > MAX_BROKEN:
            self._broken.popitem(last=False)

    def _answer_broken(self, entry: Entry, error: VoiceCloneError) -> None:
        """Answer a chunk of a stream that ended early: the final one with the error, the others with nothing."""
        with _logged():
            if entry.chunk.final:
                self._broken.pop(entry.chunk.stream_id, None)
                entry.ticket.fail(error)
                self._observer.answered(entry.chunk.stream_id)
            else:
                entry.ticket.skip()

    def _prepare(self) -> None:
        """Compute the state after a reference, unless chunks are to be decoded."""
        with self._changed:
            if not self._references or self._waiting.ready_in() == 0.0:
                return
            reference = self._references.popleft()
        try:
            self._code2wav.prepare(reference)
        except VoiceCloneError as error:  # the first chunk will get the error
            log.info("a reference could not be prepared: %s", error)
        except Exception as error:  # likewise; the streams of this batch must not fail
            log_failure(log, error, "a reference could not be prepared")

    def _sweep(self) -> None:
        """Drop what is idle, once a second."""
        if self._clock() - self._swept < SWEEP_SECONDS:
            return
        self._swept = self._clock()
        before = self._code2wav.primed_bytes
        with self._changed:
            waiting = self._alive.union(self._waiting.streams)
            self._alive.clear()
        for stream_id in self._code2wav.sweep(waiting):
            self._end(stream_id, DeadlineExceeded("no chunk of this stream came for too long"), "idle")
            self._observer.lost(stream_id)
        if self._endings or self._code2wav.primed_bytes != before:
            self._report()

    def _count(self, ending: Ending, stream_id: str) -> None:
        self._endings.append(ending)
        if (playback := self._waiting.forget(stream_id)) is not None:
            self._playbacks.append(playback)

    def _report(self, batch: int = 0, frames: int = 0, decode_ms: float = 0.0, hits: int = 0, misses: int = 0) -> None:
        endings, self._endings = self._endings, []
        playbacks, self._playbacks = self._playbacks, []
        marks, self._marks = self._marks, []
        levels = (self._code2wav.streams, self._code2wav.stream_bytes, self._code2wav.primed_bytes)
        self._observer.report(Report(*levels, batch, frames, decode_ms, hits, misses, endings, playbacks, marks))
