"""When the characters of a text are spoken, from its words: ElevenLabs' `alignment`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from voice_clone_words.words import Word


@dataclass
class Alignment:
    """Characters of a text in a row, and their times in seconds."""

    characters: list[str] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def milliseconds(self, since: float) -> dict[str, list[str] | list[int]]:
        """As their WebSockets have it, in times since a second. Neither times nor sums of durations leave a hole."""
        starts, ends = ([round(1000 * t) - round(1000 * since) for t in times] for times in (self.starts, self.ends))
        durations = [end - start for start, end in zip(starts, ends, strict=True)]
        return {"chars": self.characters, "charStartTimesMs": starts, "charDurationsMs": durations}

    def seconds(self) -> dict[str, list[str] | list[float]]:
        """As their HTTP calls have it."""
        return {
            "characters": self.characters,
            "character_start_times_seconds": self.starts,
            "character_end_times_seconds": self.ends,
        }


class CharacterTimes:
    """The times of the characters of a text, word by word.

    A word's characters share its time evenly. What is between two words, such as a blank or a tag, lasts from the end
    of the first to the beginning of the second; if nothing is there, the second begins earlier. So each character
    begins where the one before it ends.

    Args:
        text: of which the words are.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        """More may be added to it."""
        self._place = 0
        self.time = 0.0
        """When the latest of them ends."""

    def take(self, words: Sequence[Word], last: bool = False) -> Alignment:
        """The characters behind those before, up to the end of the latest of these words.

        Args:
            last: up to the end of the text.
        """
        found = Alignment()
        for word in words:
            start, end = (max(self._place, at) for at in word.span)
            begin, over = max(self.time, word.start), max(self.time, word.end)
            if self._place == 0 and start == 0:
                self.time = begin  # silence before the text has no character
            self._share(found, start, begin)
            self._share(found, end, over)
        if last:
            self._share(found, len(self.text), self.time)
        return found

    def _share(self, found: Alignment, place: int, time: float) -> None:
        """The characters up to a place have the time up to this one."""
        count = place - self._place
        if count <= 0:
            return
        edges = [round(float(edge), 4) for edge in np.linspace(self.time, time, count + 1)]
        found.characters += self.text[self._place : place]
        found.starts += edges[:-1]
        found.ends += edges[1:]
        self._place, self.time = place, time
