"""How a text is spoken sentence by sentence, and what was spoken of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from voice_clone_text.sentences import MAX_CHARACTERS, Ending, Granularity, Sentence

from ..errors import InvalidArgument
from ..types import LongOptions, SpeechOptions

MOST_UNREAD = 10.0
"""Seconds of audio of one speech; while they wait to be read, nothing further of it is begun."""
MOST_HELD = 240.0
"""Seconds of audio of one sentence that are held back at most. No sentence of `MAX_CHARACTERS` takes as long."""


@dataclass(frozen=True)
class Plan:
    """How a text is split, spoken and joined."""

    granularity: Granularity = "sentence"
    max_characters: int = MAX_CHARACTERS
    """Of a sentence, and of a text that is spoken at once."""
    prefetch: int = 2
    """Sentences that are made and buffered ahead of the current one."""
    parallel: int = 1
    """Sentences that are made concurrently. More make a long text faster, but its first sentence slower."""
    sentence_pause: float = 0.0
    """Seconds of silence between sentences."""
    paragraph_pause: float = 0.0
    """Seconds of silence between paragraphs."""
    total_characters: int | None = None
    """Longest text; None: any."""
    total_sentences: int | None = None
    retries: int = 0
    """Further attempts at a sentence whose end the model missed, as long as nothing of it was read and it is not the
    one that is being read. Each has another seed of the server's choice: a seed of the caller's leaves one attempt."""
    hold: bool = False
    """A sentence is read when it is whole, so each can be tried again; after `MOST_HELD` seconds it is read anyway."""

    @classmethod
    def of(cls, options: LongOptions) -> tuple[Plan, SpeechOptions]:
        """The plan of a speech of `speak_long`, and what remains: the options of each of its sentences."""
        rest: Any = dict(options)
        names = {"sentence_characters": "max_characters"}
        names |= {name: name for name in ("sentence_pause", "paragraph_pause", "retries", "hold")}
        given = {field: rest.pop(name) for name, field in names.items() if name in rest}
        return cls(**{"retries": 2, **given}), rest

    def check(self) -> None:
        """Raises:
        InvalidArgument: it makes no sense.
        """
        if self.max_characters < 1:
            raise InvalidArgument(f"`sentence_characters` is {self.max_characters}; it must be 1 or more")
        if self.prefetch < 0 or self.parallel < 1 or self.retries < 0:
            raise InvalidArgument("a speech needs prefetch >= 0, parallel >= 1 and retries >= 0")
        if not all(0 <= pause < math.inf for pause in (self.sentence_pause, self.paragraph_pause)):
            raise InvalidArgument("`sentence_pause` and `paragraph_pause` are seconds, 0 or more")

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
    digest = blake2b(int(seed).to_bytes(8, "little") + index.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def content_seed(seed: int, content: str, before: int, attempt: int) -> int:
    """The seed of a sentence that keeps it wherever in its text it stands; for speech that is kept.

    It is the 8-byte BLAKE2b hash of `seed`, `before` and `attempt`, 8 bytes each, and of the content in UTF-8; all
    numbers are little-endian.

    Args:
        seed: of the whole text.
        content: of the sentence, and how it is spoken.
        before: how many sentences of the same content come before it.
        attempt: 0, 1, 2, ...: each has another seed, for a model that missed the end of the sentence.
    """
    numbers = b"".join(number.to_bytes(8, "little") for number in (seed, before, attempt))
    return int.from_bytes(blake2b(numbers + content.encode(), digest_size=8).digest(), "little")
