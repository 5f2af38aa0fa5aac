"""How a text is spoken sentence by sentence, and what was spoken of it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from ..sentences import MAX_CHARACTERS, Ending, Granularity, Sentence

MOST_UNREAD = 10.0
"""Seconds of audio of one speech; while they wait to be read, nothing further of it is begun."""


@dataclass(frozen=True)
class Plan:
    """How a text is split, spoken and joined."""

    granularity: Granularity = "sentence"
    min_characters: int = 0
    """Of a sentence; see `SentenceSplitter`."""
    max_characters: int = MAX_CHARACTERS
    prefetch: int = 2
    """Sentences that are made and buffered ahead of the current one."""
    parallel: int = 1
    """Sentences that are made concurrently. More make a long text faster, but its first sentence slower."""
    sentence_pause: float = 0.0
    """Seconds of silence between sentences."""
    paragraph_pause: float = 0.0
    """Seconds of silence between paragraphs."""
    total_characters: int = 100_000
    """Longest text."""
    total_sentences: int = 10_000

    def pause_after(self, ending: Ending) -> float:
        """Seconds of silence after a sentence with this ending that is not the last."""
        return {"sentence": self.sentence_pause, "paragraph": self.paragraph_pause}.get(ending, 0.0)


@dataclass(frozen=True)
class Report:
    """How much of a text was spoken at some time."""

    sentences: int
    """Complete ones."""
    characters: int
    """Of the text, up to the end of the last complete sentence."""
    seconds: float
    """Of audio."""
    partial: Sentence | None
    """The sentence that was begun and is incomplete."""
    partial_seconds: float


def sentence_seed(seed: int | None, index: int) -> int | None:
    """The seed of a sentence. The first has that of the speech, so a single sentence equals an ordinary speech.

    Another has the 8-byte BLAKE2b hash of seed and index; seed, index and hash are 8 bytes each, little-endian.
    """
    if seed is None or index == 0:
        return seed
    digest = blake2b(seed.to_bytes(8, "little") + index.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
