"""A sentence of a longer text, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..callers import in_time
from .speaker import Speaker, Speech
from .text import SpokenSentence


@dataclass(eq=False)
class AsyncSentence(SpokenSentence):
    """A sentence that is made in a task."""

    task: asyncio.Task[None] | None = None
    """Makes it; None before that."""
    speech: Speech | None = None

    def begin(self, speaker: Speaker, options: Mapping[str, Any]) -> Speech:
        """Ask for it."""
        with in_time(self.index == 0):
            return speaker.speak(self.sentence.text, **options)

    def stop(self) -> None:
        """Stop it, here and on the server."""
        if self.task is not None:
            self.task.cancel()
        if self.speech is not None:
            self.speech.close()
