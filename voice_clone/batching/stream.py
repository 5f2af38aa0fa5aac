"""One stream of frames: its request, its chunk schedule, its listener's playback, and where its chunks go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from numpy.typing import NDArray

from voice_clone.batching.source import Frame, PayloadForm
from voice_clone.errors import DeadlineExceeded, VoiceCloneError
from voice_clone.turns import PLAIN, Caller

R = TypeVar("R")

MAX_UNSENT = 4  # chunks; a stream whose sink is further behind makes no frames until it has caught up
FLUSH_LEAD = 0.2  # seconds of audio left to hear when a chunk that lacks text goes out as it is


class Playback:
    """When a listener has heard all that was sent. It starts with the first chunk and pauses wherever one is late.

    Args:
        unit_seconds: how long one of what is counted, frames or samples, is heard.

    Attributes:
        until: when all is heard; None before the first chunk.
        underruns: chunks that came after playback had run dry.
        silence: seconds that the listener waited for them.
    """

    def __init__(self, unit_seconds: float) -> None:
        self.unit_seconds = unit_seconds
        self.until: float | None = None
        self.underruns = 0
        self.silence = 0.0

    def add(self, count: int, now: float) -> None:
        """`count` more were sent at `now`."""
        if count and self.until is not None and now > self.until:
            self.underruns += 1
            self.silence += now - self.until
        self.until = max(now, now if self.until is None else self.until) + self.unit_seconds * count


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a stream up to a chunk. No phase includes time in which the stream waited for text."""

    queue: float  # waiting for a slot
    prefill: float  # from the slot to the end of the prompt, the live streams' steps in between included
    generate: float  # from the end of the prefill to the chunk
    first_frame: float  # from the submission to the first frame
    first_chunk: float  # from the submission to the first chunk, which may have several frames
    gap: float  # the longest time between two chunks
    text: float | None = None  # waiting for text; None: it was whole


@dataclass(frozen=True)
class FrameChunk:
    """Consecutive frames of a stream. The last chunk has a finish reason and may be empty."""

    index: int
    payload: NDArray[Any]  # [frames, width]
    frames: int  # of the stream so far, this chunk included
    finish: str | None
    prompt_positions: int  # that had to be read; the source may have known the others
    timing: Timing


@dataclass(frozen=True)
class View:
    """What a stream does at a moment."""

    live: bool  # whether it has a slot
    frames: int  # that it has made
    starved_since: float | None  # it waits for text since then, on the engine's clock


class Sink(Protocol):
    """Where a stream's chunks go. Called from one thread, in order; nothing follows a last chunk or a failure."""

    def chunk(self, chunk: FrameChunk) -> None:
        """Take the next chunk."""

    def fail(self, error: BaseException) -> None:
        """The stream ends with `error`."""

    def cancelled(self) -> bool:
        """Whether the client has left."""

    def announce(self) -> None:
        """The first chunk comes soon, and a listener waits for it; called where batch work is in its way."""


@dataclass(eq=False)
class Stream(Generic[R]):
    """A stream's state in the engine, touched by the engine thread alone.

    Exceptions: any thread may set `stopped`; `unsent` is counted and `more` filled under the engine's lock.
    """

    id: str
    request: R
    sink: Sink
    schedule: Sequence[int]  # frames of chunk 0, 1, ...; the last repeats
    form: PayloadForm
    frame_seconds: float = 0.0  # how long a frame is heard; 0: chunks keep to the schedule
    deadline: float | None = None  # on `clock`
    clock: Callable[[], float] = time.monotonic
    text_open: bool = False  # whether its text may be extended
    caller: Caller = PLAIN
    stopped: VoiceCloneError | None = None  # the error with which another thread ended it
    prompt_positions: int = 0  # to be prefilled
    unread: int = 0  # of them, still
    unsent: int = 0  # chunks that the sink has not taken yet
    frames: int = 0  # made
    sent: int = 0  # of them, in chunks
    chunks: int = 0
    pending: list[NDArray[Any]] = field(default_factory=list)
    text_follows: bool = False  # whether more text may follow what the source has
    more: list[Any] = field(default_factory=list)  # text that the source does not have yet
    text_closed: bool = False  # whether all text has come, to here or to the source
    parked: Any = None  # what the source keeps of it while it has no slot
    # Points in time on `clock`; None: not yet.
    started: float | None = None
    prefilled: float | None = None
    first_frame: float | None = None
    last_frame: float | None = None
    last_chunk: float | None = None
    gap: float = 0.0  # seconds
    until_first_chunk: float | None = None  # seconds since the submission, but for those of waiting for text
    starved_since: float | None = None  # it waits for text
    resumed: float | None = None  # it has text again
    waited: float = 0.0  # seconds, for text, until then
    waited_first: float = 0.0  # of them, before the first frame

    def __post_init__(self) -> None:
        self.submitted = self.clock()
        self.worked = self.submitted  # when the engine last did something for it
        self.text_follows = self.text_open
        self._waited_before = 0.0  # the last chunk
        self._playback = Playback(self.frame_seconds)

    def over(self, now: float) -> VoiceCloneError | None:
        """The error with which the stream must end now; None: it may go on."""
        if self.stopped is not None:
            return self.stopped
        if self.deadline is not None and now >= self.deadline:
            return DeadlineExceeded("the speech was not done before its deadline; allow more time or ask for less")
        return None

    def add(self, frame: Frame) -> list[FrameChunk]:
        """Take a frame or a run of frames; returns the chunks that it completes.

        A chunk is complete when it has as many frames as the schedule says, when the stream's last frame is in it, or
        earlier if the source says so, or the listener's playback would run dry before the chunk is full.
        """
        now = self.clock()
        early = False
        if frame.payload is not None:
            early = frame.flush or self._runs_dry(now)
            made = frame.payload if frame.payload.ndim == 2 else frame.payload[None]
            self.pending.extend(made)
            self.frames += len(made)
            self.last_frame = now
            if self.first_frame is None:
                self.first_frame = now
                self.waited_first = self.waited
        chunks = []
        while len(self.pending) > self._wanted:
            chunks.append(self._chunk(now, self._wanted, None))
        if frame.finish is not None or len(self.pending) == self._wanted or early:
            chunks.append(self._chunk(now, len(self.pending), frame.finish))
        return chunks

    @property
    def _wanted(self) -> int:
        """Frames of the next chunk by the schedule."""
        return self.schedule[min(self.chunks, len(self.schedule) - 1)]

    def take_text(self) -> tuple[list[Any], bool]:
        """The text that the source does not have yet, and whether no more will come."""
        more, self.more = self.more, []
        return more, self.text_closed

    def set_starved(self, starved: bool, now: float) -> None:
        """Whether it waits for text from now on."""
        if starved and self.starved_since is None:
            self.starved_since = now
        elif not starved and self.starved_since is not None:
            self.waited += now - self.starved_since
            self.starved_since, self.resumed = None, now

    @property
    def starved(self) -> bool:
        """Whether it waits for text."""
        return self.starved_since is not None

    @property
    def urgent(self) -> bool:
        """Whether a listener waits for its first chunk."""
        return self.chunks == 0 and self.caller.urgency == "interactive" and not self.starved

    @property
    def view(self) -> View:
        return View(self.started is not None, self.frames, self.starved_since)

    def wake_at(self) -> list[float]:
        """When there is something to do even if nothing else happens."""
        flush = self.flush_at if self.unsent < MAX_UNSENT else None
        return [at for at in (self.deadline, flush) if at is not None]

    @property
    def flush_at(self) -> float | None:
        """When a chunk that waits for text goes out half full. None: none waits, or chunks are always full."""
        if self.starved_since is None or not self.pending or not self.frame_seconds:
            return None
        return self.starved_since if self._playback.until is None else self._playback.until - FLUSH_LEAD

    def moves(self, now: float) -> bool:
        """Whether a stream in a slot can make something now."""
        if self.starved_since is None:
            return bool(self.unread) or self.unsent < MAX_UNSENT
        return (at := self.flush_at) is not None and at <= now and self.unsent < MAX_UNSENT

    def flush(self) -> FrameChunk:
        """The next chunk, of the frames that are there."""
        return self._chunk(self.clock(), len(self.pending), None)

    def _chunk(self, now: float, frames: int, finish: str | None) -> FrameChunk:
        """Of the first pending frames, so many."""
        self._playback.add(frames, now)
        waited = self._waited(now)
        if self.last_chunk is not None:
            self.gap = max(self.gap, now - self.last_chunk - (waited - self._waited_before))
        self.last_chunk, self._waited_before = now, waited
        if self.until_first_chunk is None:
            self.until_first_chunk = now - self.submitted - waited
        payload = self.form.join(self.pending[:frames])
        self.sent += frames
        chunk = FrameChunk(self.chunks, payload, self.sent, finish, self.prompt_positions, self.timing(now))
        self.pending = self.pending[frames:]
        self.chunks += 1
        return chunk

    def _waited(self, now: float) -> float:
        """Seconds for text so far."""
        return self.waited + (0.0 if self.starved_since is None else now - self.starved_since)

    def lead(self, now: float) -> float | None:
        """Seconds of sent audio that the listener has not heard yet.

        None if no gap can be avoided: before the first chunk, after playback has run dry, and where it must run dry
        because frames are made more slowly than they are heard. Also if no listener waits.
        """
        heard_until = self._playback.until
        if heard_until is None or self.first_frame is None or self.caller.batch:
            return None
        made_in = now - self.first_frame - (self._waited(now) - self.waited_first)
        if heard_until < now or made_in > self.frame_seconds * self.frames:
            return None
        return heard_until - now

    def _runs_dry(self, now: float) -> bool:
        """Whether less audio is left to hear than the time in which two frames are made.

        One is the next frame; the other stands for decoding and transport.
        """
        lead = self.lead(now)
        if lead is None or self.last_frame is None:
            return False
        return lead < 2.0 * (now - max(self.last_frame, self.resumed or self.last_frame))

    def timing(self, now: float) -> Timing:
        """Milliseconds so far; a phase that was not reached counts 0, one that goes on counts up to `now`."""
        started = now if self.started is None else self.started
        prefilled = now if self.prefilled is None else self.prefilled
        first = now if self.first_frame is None else self.first_frame
        waited = self._waited(now)
        chunk = now - self.submitted - waited if self.until_first_chunk is None else self.until_first_chunk
        early = waited if self.first_frame is None else self.waited_first
        prefill, later = prefilled - started - early, now - prefilled - (waited - early)
        return Timing(
            queue=1e3 * (started - self.submitted),
            prefill=1e3 * prefill,
            generate=1e3 * later,
            first_frame=1e3 * (first - self.submitted - early),
            first_chunk=1e3 * chunk,
            gap=1e3 * self.gap,
            text=1e3 * waited if self.text_open else None,
        )
