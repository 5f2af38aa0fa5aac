"""The errors of refused streams, kept for a minute: an append to the text of one gets its error at once."""

from __future__ import annotations

from collections.abc import Callable

from voice_clone.errors import VoiceCloneError

KEPT_SECONDS = 60.0
MAX_KEPT = 1024  # streams; the oldest one goes


class Refusals:
    """The errors of refused streams, by id. Not thread-safe.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._errors: dict[str, tuple[float, VoiceCloneError]] = {}  # when and why

    def add(self, stream_id: str, error: VoiceCloneError) -> None:
        """A stream was refused."""
        self.drop(stream_id)
        if len(self._errors) >= MAX_KEPT:
            self.drop(next(iter(self._errors)))
        self._errors[stream_id] = self._clock(), error

    def drop(self, stream_id: str) -> None:
        """It has begun after all."""
        self._errors.pop(stream_id, None)

    def check(self, stream_id: str) -> None:
        """Raises: the error of a stream that was refused."""
        if stream_id in self._errors:
            error = self._errors[stream_id][1]
            raise type(error)(*error.args)

    def sweep(self) -> None:
        """Forget the old ones."""
        now = self._clock()
        self._errors = {key: entry for key, entry in self._errors.items() if now - entry[0] <= KEPT_SECONDS}

    def __len__(self) -> int:
        return len(self._errors)
