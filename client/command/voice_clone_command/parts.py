"""A text with several voices, pauses or markup as one speech: `speak --ssml`, `--script`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from voice_clone_client.backends import now
from voice_clone_client.errors import InvalidArgument
from voice_clone_client.speeches.speech import Speech
from voice_clone_client.types import Chunk
from voice_clone_client.word_times import BlockingWordTimes
from voice_clone_sound.async_parts import AsyncParts
from voice_clone_text import sequence
from voice_clone_text.sequence import Part, turns_of

Asked = tuple[Speech, Iterator[Chunk]]


class PartsSpeech(Iterator[Chunk]):
    """`AsyncParts` without an event loop.

    Args:
        parts: the parts.
        ask: asks the server for one; gives the speech, and its chunks as they are heard.
        times, begins: as of `AsyncParts`.
    """

    def __init__(
        self,
        parts: sequence.Sequence,
        ask: Callable[[Part], Asked],
        times: BlockingWordTimes | None = None,
        begins: Sequence[int] = (0,),
    ) -> None:
        self._parts = AsyncParts(parts, lambda part: _Heard(ask(part)), times, begins)

    def __next__(self) -> Chunk:
        try:
            return now(anext(self._parts))
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def info(self) -> Mapping[str, Any] | None:
        return self._parts.info

    @property
    def whole(self) -> bool:
        """Whether all parts were read, and each ended with `stop` or `length`."""
        return self._parts.whole

    def __enter__(self) -> PartsSpeech:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parts.close()


class _Heard:
    """A speech whose chunks are there when they are asked for."""

    def __init__(self, asked: Asked) -> None:
        self._speech, self._chunks = asked
        self.close = self._speech.close

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        try:
            return next(self._chunks)
        except StopIteration:
            raise StopAsyncIteration from None

    @property
    def info(self) -> Mapping[str, Any] | None:
        return self._speech.info


def texts_of(text: str, script: bool) -> list[tuple[str | None, str]]:
    """The names and the words of a script; without a script one text without a name.

    Raises:
        InvalidArgument: it is no dialogue.
    """
    try:
        return [*turns_of(text)] if script else [(None, text)]
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
