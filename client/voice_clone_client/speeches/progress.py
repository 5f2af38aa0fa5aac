"""The state of a speech: what came of it, when, and how it ended."""

from __future__ import annotations

import time

from ..types import Chunk, SpeechStatus, State


class Progress:
    """The state of a speech, from its request on.

    Args:
        began: when it was asked for, on `time.monotonic`.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._first: float | None = None
        self._ended: float | None = None
        self._state: State = "running"
        self._error: BaseException | None = None
        self._seconds = 0.0

    def took(self, chunk: Chunk) -> Chunk:
        """Note that a chunk was read, and return it."""
        if self._first is None:
            self._first = time.monotonic()
        self._seconds += len(chunk.samples) / chunk.sample_rate
        if chunk.final:
            self.end()
        return chunk

    def end(self) -> None:
        """Note that all of it was read. Does nothing if it has ended."""
        if self._ended is None:
            self._end("finished")

    def cancel(self) -> None:
        """Note that the rest is not wanted. Does nothing if it has ended."""
        if self._ended is None:
            self._end("cancelled")

    def fail(self, error: BaseException) -> None:
        """Note that it failed, perhaps by what came after its last chunk. Does nothing if it was cancelled."""
        if self._state != "cancelled":
            self._error = error
            self._end("failed")

    def _end(self, state: State) -> None:
        self._state, self._ended = state, time.monotonic()

    def status(self, finish_reason: str | None) -> SpeechStatus:
        """Return the state for the caller; `finish_reason` is the server's."""
        now = time.monotonic() if self._ended is None else self._ended
        return SpeechStatus(
            state=self._state,
            finish_reason=finish_reason,
            seconds=self._seconds,
            first_audio_ms=None if self._first is None else 1e3 * (self._first - self._began),
            total_ms=1e3 * (now - self._began),
            error=self._error,
        )
