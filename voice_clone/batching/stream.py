"""One stream of codec frames: its request, its chunk schedule, and where its chunks go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

R = TypeVar("R", contravariant=True)


class Frame(Protocol):
    """What a stream made in one step: codes, or the reason why there are none, or both for a last frame."""

    @property
    def codes(self) -> NDArray[np.int32] | None:
        """int32 [codebooks]; None where the stream ended without a frame."""

    @property
    def finish(self) -> str | None:
        """None while the stream goes on, else `stop`, `length` or `error`."""


class FrameSource(Protocol[R]):
    """The model that makes frames, `slots` streams at a time."""

    @property
    def slots(self) -> int:
        """How many streams can be live at once."""

    def start(self, slot: int, request: R) -> None:
        """Prefill a free slot; nothing is changed if this raises."""

    def step(self, slots: Sequence[int]) -> Sequence[Frame]:
        """One frame for each of `slots`, in that order."""

    def free(self, slot: int) -> None:
        """Forget a slot's stream."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a stream up to a chunk."""

    queue: float  # waiting for a slot
    prefill: float
    generate: float  # from the end of the prefill to the chunk


@dataclass(frozen=True)
class Chunk:
    """Consecutive frames of a stream. The last chunk has a finish reason and may be empty."""

    index: int
    codes: NDArray[np.int32]  # [frames, codebooks]
    frames: int  # of the stream so far, this chunk included
    finish: str | None
    timing: Timing


class Sink(Protocol):
    """Where a stream's chunks go. Called from one thread, in order; nothing follows a last chunk or a failure."""

    def chunk(self, chunk: Chunk) -> None:
        """Take the next chunk."""

    def fail(self, error: BaseException) -> None:
        """The stream ends with `error`."""


@dataclass
class Stream(Generic[R]):
    """A stream's state in the engine; touched by the engine thread alone, but for `cancelled`."""

    id: str
    request: R
    sink: Sink
    schedule: Sequence[int]  # frames of chunk 0, 1, ...; the last repeats
    codebooks: int
    cancelled: bool = False
    frames: int = 0
    chunks: int = 0
    pending: list[NDArray[np.int32]] = field(default_factory=list)
    submitted: float = field(default_factory=time.monotonic)
    started: float = 0.0
    prefilled: float = 0.0

    def add(self, frame: Frame) -> Chunk | None:
        """Take a frame; returns the chunk that it completes, if any."""
        if frame.codes is not None:
            self.pending.append(frame.codes)
            self.frames += 1
        wanted = self.schedule[min(self.chunks, len(self.schedule) - 1)]
        if frame.finish is None and len(self.pending) < wanted:
            return None
        codes: NDArray[Any] = np.array(self.pending, dtype=np.int32).reshape(len(self.pending), self.codebooks)
        now = time.monotonic()
        timing = Timing(
            queue=1e3 * (self.started - self.submitted),
            prefill=1e3 * (self.prefilled - self.started),
            generate=1e3 * (now - self.prefilled),
        )
        chunk = Chunk(self.chunks, codes, self.frames, frame.finish, timing)
        self.pending = []
        self.chunks += 1
        return chunk
