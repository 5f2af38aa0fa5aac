"""Several speeches in a row as one, with silences between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

from voice_clone_client import Chunk
from voice_clone_client.long_text.speaker import Speech
from voice_clone_sound.joined_parts import JoinedParts
from voice_clone_sound.tempo import Tempo

from .segments import Segment, Segments


class SegmentedSpeech:
    """The segments of a request as one speech; see `JoinedParts`.

    A segment is asked for when the first chunk of the one before it is there, so its audio is ready when that ends.

    Args:
        segments: what is spoken.
        ask: asks the server for a segment.
    """

    def __init__(self, segments: Segments, ask: Callable[[Segment], Speech]) -> None:
        self._spoken = segments.spoken
        self._ask = ask
        self._speeches = [ask(segments.spoken[0])]
        self._joined = JoinedParts(segments.sequence, self._tempo)

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
                if len(self._speeches) == current + 1 < len(self._spoken):
                    self._speeches.append(self._ask(self._spoken[current + 1]))
            if len(chunk.samples) or chunk.index == 0:
                return chunk
        raise StopAsyncIteration

    @property
    def info(self) -> Mapping[str, Any] | None:
        """See `JoinedParts.info`."""
        return self._joined.info or None

    def close(self) -> None:
        """Stop the speeches that are not over."""
        for speech in self._speeches[self._joined.current :]:
            speech.close()

    def _tempo(self, index: int, rate: int) -> Tempo | None:
        speed = self._spoken[index].rate
        return Tempo(rate, speed) if speed != 1.0 else None
