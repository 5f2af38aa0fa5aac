"""A word of a speech, and what was heard of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Word:
    """A word and when it is spoken."""

    text: str
    """As the caller wrote it, with its punctuation."""
    start: float
    """Seconds from the beginning of the speech."""
    end: float
    span: tuple[int, int]
    """Begin and end in the caller's text, in code points."""
    confidence: float | None = None
    """0 to 1: how surely it is there; None of an estimate."""
    estimated: bool = False
    """Whether no engine found it: its times come from the length of the text and the pauses."""

    def as_json(self) -> dict[str, Any]:
        """The fields, without a confidence that is None."""
        fields = {"text": self.text, "start": self.start, "end": self.end, "span": list(self.span)}
        if self.confidence is not None:
            fields["confidence"] = self.confidence
        return {**fields, "estimated": self.estimated}


def heard_characters(words: Sequence[Word], seconds: float) -> int:
    """How many characters of the text are heard when `seconds` of the speech are played: up to the end of the last word
    that has ended, or of which more than half was played."""
    heard = 0
    for word in words:
        if word.end <= seconds or seconds - word.start > (word.end - word.start) / 2:
            heard = word.span[1]
    return heard
