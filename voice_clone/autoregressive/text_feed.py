"""The text of one stream as its talker reads it: first with the prompt, then a row a frame."""

from __future__ import annotations

import torch
from torch import Tensor

from voice_clone.autoregressive.talker import TalkerInput


class TextFeed:
    """A stream's prompt and text, which may still grow.

    Args:
        given: what is known at the start.

    Attributes:
        embeds: [n, C], the first positions of the prompt: those whose text is known.
        length: all its positions.
    """

    def __init__(self, given: TalkerInput) -> None:
        self.embeds = given.embeds
        self._below = given.embeds[:0] if given.below is None else given.below
        self.length = len(self.embeds) + len(self._below)
        self._trailing, self._pad, self._end = given.trailing_text, given.pad, given.end
        self._passed = 0  # rows that were read and dropped

    @property
    def open(self) -> bool:
        """Whether text may follow."""
        return self._end is not None

    def covers(self, frames: int) -> bool:
        """Whether the text is there that goes with the newest of so many frames."""
        return not self.open or frames - 1 < self._passed + len(self._trailing)

    def ended(self, frames: int) -> bool:
        """Whether the talker has read all text by then."""
        return not self.open and frames > self._passed + len(self._trailing)

    def row(self, frames: int) -> Tensor:
        """[C], what is added to the newest of so many frames."""
        index = frames - 1 - self._passed
        return self._trailing[index] if 0 <= index < len(self._trailing) else self._pad

    def extend(self, rows: Tensor, last: bool, frames: int) -> None:
        """More text, [n, C], comes while the stream has so many frames; `last` closes the text."""
        if self._end is None:
            raise ValueError("the text of this stream is complete")
        if last:
            missing = max(0, len(self._below) - len(rows) - 1)
            rows = torch.cat([rows, self._end[None], self._pad.expand(missing, -1)])
            self._end = None
        filled = min(len(rows), len(self._below))
        self.embeds = torch.cat([self.embeds, rows[:filled] + self._below[:filled]])
        self._below = self._below[filled:]
        read = min(max(0, frames - 1 - self._passed), len(self._trailing))
        self._trailing = torch.cat([self._trailing[read:], rows[filled:]])
        self._passed += read
