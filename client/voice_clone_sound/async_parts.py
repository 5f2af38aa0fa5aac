"""The parts of a text as one speech, with silences between them, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from voice_clone_client.long_text.speaker import Speech
from voice_clone_client.types import Chunk, is_whole
from voice_clone_client.word_times import AsyncWordTimes, BlockingWordTimes
from voice_clone_text.sequence import Part, Sequence

from .joined_parts import JoinedParts


class AsyncParts:
    """The chunks of all parts; see `JoinedParts`.

    A part is asked for when the first chunk of the one before it is there, so its audio is ready when that ends.

    Args:
        sequence: the parts.
        ask: asks the server for a part; called for each, in their order.
        times: finds the times of the words of all parts; None: they are not wanted.
        begins: where the texts that `sequence` has begin in that of `times`.
    """

    def __init__(
        self,
        sequence: Sequence,
        ask: Callable[[Part], Speech],
        times: AsyncWordTimes | BlockingWordTimes | None = None,
        begins: SequenceOf[int] = (0,),
    ) -> None:
        self._parts = sequence.parts
        self._ask = ask
        self._times, self._begins = times, begins
        self._followed = -1  # the part whose words are looked for
        self._speeches = [ask(self._parts[0])]
        self._joined = JoinedParts(sequence)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        while self._joined.part is not None:
            current = self._joined.current
            speech = self._speeches[current]
            try:
                heard = await anext(speech)
                chunk = self._joined.take(replace(heard, info=speech.info) if heard.info else heard)
            except StopAsyncIteration:
                speech.close()
                chunk = self._joined.end()
            else:
                if len(self._speeches) == current + 1 < len(self._parts):
                    self._speeches.append(self._ask(self._parts[current + 1]))
            if self._times is not None:
                if self._followed < current:
                    self._followed, part = current, self._parts[current]
                    self._times.begin(part.span.text, partial(part.written, self._begins[part.turn]))
                self._times.feed(chunk.samples, chunk.sample_rate, self._joined.current > current)
            if len(chunk.samples) or chunk.index == 0:
                return chunk
        raise StopAsyncIteration

    @property
    def info(self) -> Mapping[str, Any] | None:
        return self._joined.info or None

    @property
    def finish_reason(self) -> str | None:
        """The worst of the parts' reasons; None before the end."""
        return None if self._joined.part is not None else self._joined.info.get("finish_reason")

    @property
    def whole(self) -> bool:
        """Whether all parts were read, and each ended with `stop` or `length`."""
        return is_whole(self.finish_reason)

    def close(self) -> None:
        """Stop the speeches that are not over."""
        for speech in self._speeches[self._joined.current :]:
            speech.close()

    async def __aenter__(self) -> AsyncParts:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
