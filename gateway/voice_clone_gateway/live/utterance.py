"""A text of a session, and the state of its speech."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from voice_clone_client.long_text.long_speech import AsyncLongSpeech
from voice_clone_text.sentences import Sentence

from ..speech.planned_text import PlannedText
from ..speech.spoken_words import SpokenWords
from ..speech.streaming_text import StreamingText
from .config import StreamConfig


@dataclass(eq=False)
class Utterance:
    """A text from its first piece to its end."""

    index: int
    lane: str
    """Utterances of one lane are spoken one after another, those of different lanes at once."""
    config: StreamConfig
    speech: AsyncLongSpeech | StreamingText | PlannedText
    began: float
    """Time of its first text, on the clock of the event loop."""
    first_audio: float | None = None
    """Time of its first audio."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its text is complete."""
    failed: bool = False
    finish_reason: str | None = None
    """How its speech ended; the worst of its pieces."""
    over: bool = False
    """Whether its end was sent to the client."""
    sent: float = 0.0
    """Seconds of audio, before the change of speed."""
    pieces: int = 0
    """Complete ones that were sent."""
    task: asyncio.Task[None] | None = None
    warnings: Sequence[str] = ()
    """Of what it is asked for, before its text is read."""
    words: SpokenWords | None = None
    """Their times; None if the client does not want them."""

    def milliseconds(self, seconds: float) -> int:
        """The duration after the change of speed."""
        return round(1000 * seconds / self.config.speed)


@dataclass(eq=False)
class Piece:
    """A sentence of an utterance, or a part of a text that is being written, while its audio is sent."""

    index: int
    sentence: Sentence
    seed: int | None
    format: str
    sample_rate: int
    """Hz, of the audio that is sent."""
    bytes: int = 0
    """That were sent."""
    seconds: float = 0.0
    """Of audio, before the change of speed."""
