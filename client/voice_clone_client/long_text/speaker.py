"""What a speaker and a speech are, for whoever joins speeches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from ..types import Chunk


class Speech(Protocol):
    """A speech: `voice_clone_client.AsyncSpeech`, one that is held back until it is whole, or several in a row."""

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """Its chunks."""

    async def __anext__(self) -> Chunk:
        """The next one."""

    @property
    def info(self) -> Mapping[str, Any] | None:
        """The latest info of the server on it."""

    def close(self) -> None:
        """Stop it."""


class Speaker(Protocol):
    """What speaks: `voice_clone_client.AsyncClient`, or one that holds its speeches back until they are whole."""

    def speak(self, text: str, *args: Any, **options: Any) -> Speech:
        """Begin to speak `text`; `options` are those of `AsyncClient.speak`, `args` are none.

        With both, any options fit for mypy: a speaker may name its own, as `AsyncClient` does.
        """
