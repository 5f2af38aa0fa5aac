"""When the words of a speech are spoken, in seconds of the audio that is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from voice_clone_client import Chunk
from voice_clone_client.word_times import AsyncWordTimes
from voice_clone_words.words import Word

from .segments import Segments

Take = Callable[[Chunk], Sequence[Word]]


class SpokenWords:
    """The words of one speech. Its audio waits for none of them.

    Args:
        times: follows the speech.
        take: gets each chunk that is read, and returns the words that are known since the one before.
        speed: factor of the tempo that is set behind it.
    """

    def __init__(self, times: AsyncWordTimes, take: Take, speed: float = 1.0) -> None:
        self._times = times
        self._take = take
        self._speed = speed

    def take(self, chunk: Chunk) -> list[Word]:
        """The words that are known since the chunk before."""
        return self._sent(self._take(chunk))

    async def rest(self) -> list[Word]:
        """The words that are left when all chunks were read; it waits a little for the last ones."""
        await self._times.wait()
        return self._sent(self._times.news())

    def close(self) -> None:
        """Ask for no more words."""
        self._times.close()

    def _sent(self, words: Sequence[Word]) -> list[Word]:
        return [replace(word, start=word.start / self._speed, end=word.end / self._speed) for word in words]


class PartTimes:
    """Follows the parts of a speech, each of which is aligned alone.

    Args:
        times: of all of it.
        segments: what is spoken.
    """

    def __init__(self, times: AsyncWordTimes, segments: Segments) -> None:
        self._times = times
        self._spoken = segments.spoken
        self._begun = -1

    def heard(self, index: int, chunk: Chunk, last: bool) -> None:
        """The next chunk of a part."""
        if self._begun < index:
            self._begun = index
            self._times.begin(self._spoken[index].text, self._spoken[index].written)
        self._times.feed(chunk.samples, chunk.sample_rate, last)
