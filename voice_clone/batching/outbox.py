"""The outbox: a thread that hands chunks to their sinks, so that a slow receiver delays no frames."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from voice_clone.batching.statistics import Statistics
from voice_clone.batching.stream import FrameChunk, Stream
from voice_clone.errors import Overloaded, VoiceCloneError

POLL_SECONDS = 0.02
# Sinks asked at each poll. Each costs about 0.1 ms here, and a heartbeat as much in code2wav: 200 a second at most, so
# that 64 streams on a GPU are asked in 0.32 s. Up to 8 are asked as often as their heartbeats are due.
POLL_STREAMS = 4

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Levels:
    """How full the engine is."""

    live: int
    waiting: int
    starved: int  # streams that wait for text


class Outbox:
    """Delivers what `put` gets, in order, and watches for streams whose client has left.

    Args:
        delivered: called after each chunk that a sink took.
        abandoned: called with a stream whose client has left or whose sink has failed.
        levels: asked for the gauges.
        statistics: what is counted and timed; None: nothing.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        delivered: Callable[[Stream[Any]], None],
        abandoned: Callable[[Stream[Any]], None],
        levels: Callable[[], Levels],
        statistics: Statistics | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._delivered = delivered
        self._abandoned = abandoned
        self._levels = levels
        self._statistics = statistics
        self._open: dict[Stream[Any], None] = {}  # in the order of the questions; used by the thread alone
        self._next_poll = 0.0
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # what the thread does next
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def open(self, stream: Stream[Any]) -> None:
        """Announce a stream: from now on its sink is asked whether it is still wanted."""
        self._queue.put(partial(self._watch, stream))

    def announce(self, stream: Stream[Any]) -> None:
        """Tell a stream's sink that its first chunk comes soon."""
        self._queue.put(partial(self._announce, stream))

    def put(self, stream: Stream[Any], item: FrameChunk | BaseException) -> None:
        """Deliver a stream's next chunk, or the error that ends it."""
        self._queue.put(partial(self._deliver, stream, item))

    def refused(self, stream: Stream[Any], error: Overloaded) -> None:
        """Count a stream that was never opened; its caller has the error."""
        self._queue.put(partial(self._count, stream, error.slug))

    def close(self) -> None:
        """Deliver what is left, then end."""
        self._queue.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        polled = True
        while True:
            try:
                got = self._queue.get(timeout=POLL_SECONDS if self._open else None)
                if got is None:
                    return
                got()
            except queue.Empty:
                pass
            except Exception:
                log.exception("the outbox failed to handle an item")
            try:
                self._poll()
                polled = True
            except Exception:  # of a sink, or of a gauge; without this thread no stream would ever end
                if polled:  # the same failure again is not logged
                    log.exception("the outbox failed to ask the sinks whether their clients are there")
                polled = False

    def _watch(self, stream: Stream[Any]) -> None:
        if not self._open:  # a new stream's client is there, and the question would delay its first frame
            self._next_poll = self._clock() + POLL_SECONDS
        self._open[stream] = None

    def _announce(self, stream: Stream[Any]) -> None:
        if stream in self._open:
            stream.sink.announce()

    def _deliver(self, stream: Stream[Any], item: FrameChunk | BaseException) -> None:
        if stream not in self._open:  # its sink has failed, and it has ended already
            return
        if isinstance(item, FrameChunk):
            self._send(stream, item)
        else:
            self._fail(stream, item)

    def _send(self, stream: Stream[Any], chunk: FrameChunk) -> None:
        try:
            stream.sink.chunk(chunk)
        except Exception as error:
            log.exception("a chunk could not be sent")
            try:
                self._fail(stream, error)
            finally:
                self._abandoned(stream)
            return
        self._delivered(stream)
        if chunk.finish is not None:
            del self._open[stream]
            self._count(stream, chunk.finish)

    def _fail(self, stream: Stream[Any], error: BaseException) -> None:
        del self._open[stream]
        try:
            stream.sink.fail(error)
        finally:
            self._count(stream, error.slug if isinstance(error, VoiceCloneError) else "internal")

    def _count(self, stream: Stream[Any], reason: str) -> None:
        self._show_levels()  # before the count: a reader who sees the stream's end sees its slot free
        if self._statistics is not None:
            self._statistics.ended(reason, stream.frames, stream.timing(self._clock()))

    def _show_levels(self) -> None:
        if self._statistics is not None:
            levels = self._levels()
            self._statistics.levels(levels.live, levels.waiting, levels.starved)

    def _poll(self) -> None:
        now = self._clock()
        if now < self._next_poll and self._open:
            return
        self._next_poll = now + POLL_SECONDS
        for stream in list(self._open)[:POLL_STREAMS]:
            del self._open[stream]
            self._open[stream] = None  # to the end of the row
            if stream.stopped is None and stream.sink.cancelled():
                self._abandoned(stream)
        self._show_levels()
