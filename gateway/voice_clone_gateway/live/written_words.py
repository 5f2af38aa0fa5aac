"""When the words of a text are spoken that comes in pieces, in seconds of the audio that is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from voice_clone_client.long_text.text import SentenceChunk
from voice_clone_client.word_times import AsyncWordTimes
from voice_clone_text.sentences import Sentence
from voice_clone_words.words import Word

from ..http.account import Full


class WrittenWords:
    """The words of one utterance.

    A part of the text can be aligned when all of it is written. So its audio waits here until its end, or until the
    text is complete. The client's audio waits for nothing.

    Args:
        times: of a text, which is empty at first.
        speed: factor of the tempo that is set behind it.
        held: called with the bytes that wait from now on, fewer or more.
    """

    def __init__(self, times: AsyncWordTimes, speed: float, held: Callable[[int], None]) -> None:
        self._times = times
        self._speed = speed
        self._held = held
        self._waiting: list[NDArray[np.float32]] = []
        self._begun = False  # whether the part is followed whose chunks come
        self._closed = False

    @property
    def text(self) -> str:
        """What was written so far."""
        return self._times.text

    def write(self, text: str) -> None:
        """More of the text."""
        self._times.text += text

    def take(self, chunk: SentenceChunk, complete: bool) -> list[Word]:
        """The next chunk; returns the words that are known since the one before.

        Args:
            complete: no more text follows.
        """
        if self._closed:
            return []
        samples = chunk.samples
        if chunk.first:
            self._begun = False
        if not self._begun:
            if not self._keep(samples):
                return self._sent()
            if not chunk.last and not (complete and chunk.sentence.end >= len(self.text.rstrip())):
                return self._sent()
            sentence = chunk.sentence
            self._times.begin(sentence.text, lambda first, last: _written(sentence, first, last))
            samples, self._begun = np.concatenate(self._waiting), True
            self._drop()
        self._times.feed(samples, chunk.sample_rate, chunk.last)
        return self._sent()

    async def rest(self) -> list[Word]:
        """The words that are left when all chunks were read; it waits a little for the last ones."""
        if self._closed:
            return []
        await self._times.wait()
        return self._sent()

    def close(self) -> None:
        """Ask for no more words."""
        self._closed = True
        self._drop()
        self._times.close()

    def _keep(self, samples: NDArray[np.float32]) -> bool:
        """Whether there is room for them; without it there are no more words."""
        try:
            self._held(samples.nbytes)
        except Full:
            self.close()
            return False
        self._waiting.append(samples)
        return True

    def _drop(self) -> None:
        self._held(-sum(samples.nbytes for samples in self._waiting))
        self._waiting.clear()

    def _sent(self) -> list[Word]:
        words = self._times.news()
        return [replace(word, start=word.start / self._speed, end=word.end / self._speed) for word in words]


def _written(sentence: Sentence, first: int, last: int) -> tuple[int, int]:
    """Where a part of a sentence is written; all of it, if it is not spoken as it is written."""
    if len(sentence.text) == sentence.end - sentence.start:
        return sentence.start + first, sentence.start + last
    return sentence.start, sentence.end
