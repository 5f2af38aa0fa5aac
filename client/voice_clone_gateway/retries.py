"""Another attempt at a speech whose end the model missed, as long as nothing of it was sent.

This is possible only if the whole answer is made before its first byte is sent: files, batches, sentences as files. A
stream is sent from its first chunk on: its last message says how it ended, and its caller decides.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from voice_clone_client import AsyncSpeech, Chunk, Incomplete


class Retries:
    """Speaks like an `AsyncClient`, and hands a speech on once it is whole.

    Args:
        speak: of the client.
        retries: the most further attempts, each with another seed of the server's choice.
        retried: called with the family of each of them.
    """

    def __init__(self, speak: Callable[..., AsyncSpeech], retries: int, retried: Callable[[str], None]) -> None:
        self._speak = speak
        self._retries = retries
        self._retried = retried

    def speak(self, text: str, **options: Any) -> HeldSpeech:
        """Begin to speak `text`. A caller's own seed, and a model that draws nothing, leave one attempt."""
        deterministic = options.get("seed") is not None or options.get("do_sample") is False
        require_whole, deadline = options.pop("require_whole", False), options.pop("deadline", None)
        began = time.monotonic()

        def begin() -> AsyncSpeech:
            left = None if deadline is None else deadline - (time.monotonic() - began)
            return self._speak(text, **options, deadline=left)

        retries = 0 if deterministic else self._retries
        return HeldSpeech(begin, retries, require_whole, lambda: self._retried(options["model"]))


class HeldSpeech(AsyncIterator[Chunk]):
    """A speech whose chunks come when all of them are there."""

    def __init__(
        self, begin: Callable[[], AsyncSpeech], retries: int, require_whole: bool, retried: Callable[[], None]
    ) -> None:
        self._begin = begin
        self._retries = retries
        self._require_whole = require_whole
        self._retried = retried
        self._attempt = begin()
        self._chunks: deque[Chunk] | None = None

    async def __anext__(self) -> Chunk:
        if self._chunks is None:
            self._chunks = deque(await self._made())
        if not self._chunks:
            raise StopAsyncIteration
        return self._chunks.popleft()

    async def _made(self) -> list[Chunk]:
        """The chunks of the first attempt that is whole, or of the last one.

        Raises:
            Incomplete: that is not whole, but must be.
        """
        chunks = [chunk async for chunk in self._attempt]
        while not self._attempt.whole and self._retries > 0:
            self._retries -= 1
            self._retried()
            self._attempt.close()
            self._attempt = self._begin()
            chunks = [chunk async for chunk in self._attempt]
        if self._require_whole and not self._attempt.whole:
            raise Incomplete(self._attempt.finish_reason)
        return chunks

    @property
    def info(self) -> Mapping[str, Any] | None:
        """The latest info of the server on it."""
        return self._attempt.info

    def close(self) -> None:
        """Stop it. A task that waits for a chunk gets `Cancelled`."""
        self._attempt.close()
