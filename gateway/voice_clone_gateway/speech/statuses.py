"""How the speeches of a gateway go, and how the latest ones ended; each key sees its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ..http.errors import ErrorDetail, HTTPFailure
from ..http.keys import Key

State = Literal["running", "finished", "cancelled", "failed"]


class SpeechStatus(BaseModel):
    """How a speech goes, or how it ended."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    id: str
    """The X-Request-ID of its answer."""
    status: State
    """`cancelled`: the client disconnected, or the gateway stopped."""
    finish_reason: str | None
    """How the model ended it: stop, length, budget, runaway, text_left; null: it did not."""
    seconds: float
    """Of audio that was sent."""
    created_at: float
    """When it was asked for, in seconds since 1970."""
    first_audio_ms: float | None
    """From the request to the first audio; null: there was none."""
    total_ms: float
    """From the request to the end; of a running speech until now."""
    error: ErrorDetail | None
    """Of a failed one."""
    segments: list[dict[str, Any]] | None = None
    """Of a finished one that has several: where each begins and ends, in seconds."""


@dataclass(eq=False)
class Progress:
    """A speech, from its request on.

    Args:
        id: of its request.
        began: when that came, on the clock.
        clock: seconds.
    """

    id: str
    began: float
    clock: Callable[[], float] = time.monotonic
    created_at: float = field(default_factory=time.time)
    seconds: float = 0.0
    """Of audio that was sent."""
    state: State = "running"
    finish_reason: str | None = None
    segments: list[dict[str, Any]] | None = None
    ended: float | None = None
    _first: float | None = None
    _error: ErrorDetail | None = None

    def first_audio(self) -> None:
        """Its first audio is there."""
        self._first = self.clock()

    def finish(self, finish_reason: str | None, segments: list[dict[str, Any]] | None = None) -> None:
        """All of its audio is there."""
        self.segments = segments
        self._end("finished", finish_reason)

    def fail(self, failed: HTTPFailure, finish_reason: str | None) -> None:
        """It has failed, with this answer; `finish_reason` of a model that missed the end."""
        self._error = ErrorDetail(**failed.body()["error"])
        self._end("failed", finish_reason)

    def cancel(self) -> None:
        """The rest of it is not wanted. Does nothing if it has ended."""
        if self.ended is None:
            self._end("cancelled", None)

    def _end(self, state: State, finish_reason: str | None) -> None:
        self.state, self.finish_reason, self.ended = state, finish_reason, self.clock()

    def status(self) -> SpeechStatus:
        """As the caller sees it."""
        now = self.clock() if self.ended is None else self.ended
        return SpeechStatus(
            id=self.id,
            status=self.state,
            finish_reason=self.finish_reason,
            seconds=round(self.seconds, 3),
            created_at=round(self.created_at, 3),
            first_audio_ms=None if self._first is None else round(1e3 * (self._first - self.began), 1),
            total_ms=round(1e3 * (now - self.began), 1),
            error=self._error,
            segments=self.segments,
        )


class SpeechStatuses:
    """The running speeches of all keys, and the latest of each key that have ended.

    Args:
        most: ended speeches of a key that are kept.
        seconds: for which they are kept.
        clock: seconds.
    """

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._running: dict[Key | str, dict[str, Progress]] = {}
        self._ended: dict[Key | str, dict[str, Progress]] = {}  # of each key in the order of their ends

    @contextmanager
    def follow(self, key: Key, speech_id: str, began: float) -> Iterator[Progress]:
        """A speech that runs during the `with` block, which says how it ends; else it counts as cancelled."""
        progress = Progress(speech_id, began, self._clock)
        running = self._running.setdefault(_holder(key), {})
        running[speech_id] = progress
        try:
            yield progress
        finally:
            progress.cancel()
            del running[speech_id]
            self._keep(key, progress)

    def find(self, key: Key, speech_id: str) -> SpeechStatus:
        """The status of a speech of this key, or of another key of the same owner.

        Raises:
            HTTPFailure: 404, there is none with this id, or it ended too long ago.
        """
        holder = _holder(key)
        self._forget(holder)
        for kept in (self._running, self._ended):
            if (progress := kept.get(holder, {}).get(speech_id)) is not None:
                return progress.status()
        message = "there is no speech with this id, or it has ended long ago"
        raise HTTPFailure(404, message, "speech_not_found", param="speech_id", hint=_HINT)

    def _keep(self, key: Key, progress: Progress) -> None:
        holder = _holder(key)
        self._ended.setdefault(holder, {})[progress.id] = progress
        self._forget(holder)

    def _forget(self, holder: Key | str) -> None:
        ended, old = self._ended.get(holder, {}), self._clock() - self._seconds
        for speech_id, progress in list(ended.items()):
            if len(ended) <= self._most and progress.ended is not None and progress.ended > old:
                return
            del ended[speech_id]


_HINT = (
    "give the X-Request-ID of its answer, with the same key, to the gateway that answered; --status-seconds and "
    "--status-speeches say how long it is kept"
)


def _holder(key: Key) -> Key | str:
    """Whose speeches a key sees: those of its owner, or its own."""
    return key if key.owner is None else key.owner
