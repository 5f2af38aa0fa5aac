"""What a speech of both clients has: its call, and what was read of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..responses import SpeechReader
from ..types import SpeechStatus
from .progress import Progress


class SpeechBase:
    """A speech as far as it was read.

    Args:
        call: the messages of its stream.
        began: when it was asked for, on `time.monotonic`.
        reader: makes chunks of the messages.
    """

    _reader: SpeechReader

    def __init__(self, call: Any, began: float, reader: SpeechReader) -> None:
        self._call = call
        self._reader = reader
        self._closed = False
        self._progress = Progress(began)

    @property
    def _sample_rate(self) -> int:
        return self._reader.sample_rate

    @property
    def info(self) -> Mapping[str, Any] | None:
        """The latest info of the server on this speech; at the end: frames, `cache` status, milliseconds by stage."""
        return self._reader.info

    @property
    def finish_reason(self) -> str | None:
        """How the speech ended, None before its end: `stop`, the model said the text; `length`, it has `max_frames`
        frames; `budget` or `runaway`, the model missed the end of the text; `text_left`, it ended before it had read
        all of it; `text_timeout`, the rest of a text that was being written did not come in time."""
        return self._reader.finish_reason

    @property
    def whole(self) -> bool:
        """Whether all chunks were read and the speech ended with `stop` or `length`."""
        return self._reader.whole

    @property
    def status(self) -> SpeechStatus:
        """How it goes, or how it ended, and its times."""
        return self._progress.status(self.finish_reason)

    def close(self) -> None:
        """Stop the speech, from any thread. Chunks that were not read are lost; who waits for one gets `Cancelled`."""
        self._closed = True
        self._progress.cancel()
        self._call.cancel()
