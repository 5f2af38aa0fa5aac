"""When the words of a speech are spoken, in seconds of the audio that is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from voice_clone_client import Chunk
from voice_clone_client.word_times import AsyncWordTimes
from voice_clone_words.words import Word


class SpokenWords:
    """The words of one speech. Its audio waits for none of them.

    Args:
        times: follows the speech.
        speed: factor of the tempo that is set behind it.
        fed: whether who plays the speech feeds `times`; else `take` does.
    """

    def __init__(self, times: AsyncWordTimes, speed: float = 1.0, *, fed: bool = False) -> None:
        self._times = times
        self._speed = speed
        self._fed = fed
        self.write, self.close = times.write, times.close

    @property
    def text(self) -> str:
        """What was written so far."""
        return self._times.text

    def take(self, chunk: Chunk) -> list[Word]:
        """The next chunk of all; returns the words that are known since the one before."""
        return self._sent(self._times.news() if self._fed else self._times.took(chunk).words)

    async def rest(self) -> list[Word]:
        """The words that are left when all chunks were read; it waits a little for the last ones."""
        await self._times.wait()
        return self._sent(self._times.news())

    def heard(self, seconds: float) -> str:
        """What of the text is heard in so much of the audio; see `AsyncWordTimes.heard`."""
        return self._times.heard(seconds * self._speed)

    def _sent(self, words: Sequence[Word]) -> list[Word]:
        return [replace(word, start=word.start / self._speed, end=word.end / self._speed) for word in words]
