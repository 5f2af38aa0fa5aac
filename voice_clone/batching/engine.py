"""The engine: one thread that advances all live streams by one frame a step.

submit ──> queue ──> slot ──> step, step, ... ──> outbox ──> sink
          (bounded)  (prefill)   (batched)       (its own thread, so that a slow receiver
                                                  does not hold up the frames of the others)
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from voice_clone.batching.stream import FrameSource, Sink, Stream
from voice_clone.errors import Cancelled, Internal, InvalidArgument, Overloaded

R = TypeVar("R")

log = logging.getLogger(__name__)


class Engine(Generic[R]):
    """Runs the streams of one `FrameSource`.

    Args:
        source: makes the frames; used by the engine's thread alone.
        codebooks: codes a frame.
        schedule: frames of a stream's chunks; the last number repeats.
        max_queue: streams that may wait for a slot.
    """

    def __init__(self, source: FrameSource[R], codebooks: int, schedule: Sequence[int], max_queue: int) -> None:
        self._source = source
        self._codebooks = codebooks
        self._schedule = tuple(schedule)
        self._max_queue = max_queue
        self._waiting: deque[Stream[R]] = deque()
        self._live: dict[int, Stream[R]] = {}  # by slot
        self._by_id: dict[str, Stream[R]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._outbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name="engine", daemon=True),
            threading.Thread(target=self._send, name="outbox", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, stream_id: str, request: R, sink: Sink) -> None:
        """Queue a stream; its chunks, or its failure, go to `sink`.

        Raises:
            Overloaded: the queue is full, or the engine is closing.
            InvalidArgument: a stream of this id is live.
        """
        stream = Stream(stream_id, request, sink, self._schedule, self._codebooks)
        with self._changed:
            if self._closing:
                raise Overloaded("the server is shutting down")
            if stream_id in self._by_id:
                raise InvalidArgument("a stream of this stream_id is live; every stream needs its own")
            if len(self._waiting) >= self._max_queue:
                raise Overloaded(f"{self._max_queue} streams are waiting already; try again later")
            self._waiting.append(stream)
            self._by_id[stream_id] = stream
            self._changed.notify()

    def cancel(self, stream_id: str) -> bool:
        """End a stream at the next frame boundary; returns whether there was one."""
        with self._changed:
            stream = self._by_id.get(stream_id)
            if stream is None:
                return False
            stream.cancelled = True
            self._changed.notify()
            return True

    def close(self) -> None:
        """Finish the live and waiting streams, then stop. Further submissions are refused."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        try:
            while self._admit():
                self._step()
        finally:
            self._outbox.put(None)

    def _admit(self) -> bool:
        """Wait for work and fill the free slots; False when the engine is closed and idle."""
        with self._changed:
            while not self._live and not self._waiting:
                if self._closing:
                    return False
                self._changed.wait()
            for stream in [stream for stream in self._waiting if stream.cancelled]:
                self._waiting.remove(stream)
                self._end(stream, Cancelled("the stream was cancelled"))
            free = [slot for slot in range(self._source.slots) if slot not in self._live]
            joining = [(slot, self._waiting.popleft()) for slot in free[: len(self._waiting)]]
        for slot, stream in joining:
            stream.started = time.monotonic()
            try:
                self._source.start(slot, stream.request)
            except Exception as error:
                with self._changed:
                    self._end(stream, error)
            else:
                self._live[slot] = stream
                stream.prefilled = time.monotonic()
        return True

    def _step(self) -> None:
        for slot in [slot for slot, stream in self._live.items() if stream.cancelled]:
            self._leave(slot, Cancelled("the stream was cancelled"))
        slots = list(self._live)
        if not slots:
            return
        try:
            frames = self._source.step(slots)
        except Exception as error:
            # After a failed step no slot's state can be trusted.
            log.error("a step of %d streams failed", len(slots), exc_info=error)
            for slot in slots:
                self._leave(slot, Internal("the step of this stream failed; try again"))
            return
        for slot, frame in zip(slots, frames, strict=True):
            stream = self._live[slot]
            if frame.finish == "error":
                self._leave(slot, Internal("the model made no valid frame for this stream"))
                continue
            chunk = stream.add(frame)
            if chunk is not None:
                self._outbox.put(partial(stream.sink.chunk, chunk))
            if frame.finish is not None:
                self._leave(slot)

    def _leave(self, slot: int, error: BaseException | None = None) -> None:
        """Free a slot; with `error` its stream failed, else its last chunk is out."""
        self._source.free(slot)
        stream = self._live.pop(slot)
        with self._changed:
            self._end(stream, error)

    def _end(self, stream: Stream[R], error: BaseException | None) -> None:
        del self._by_id[stream.id]
        if error is not None:
            self._outbox.put(partial(stream.sink.fail, error))

    def _send(self) -> None:
        while (action := self._outbox.get()) is not None:
            try:
                action()
            except Exception:
                log.exception("a chunk could not be sent")
