"""A text that goes to the server as it is written, token by token, and is spoken in parts of some sentences.

As an `AsyncLongSpeech`, but nothing waits for the end of a sentence, and prosody does not start again with each. The
client cuts the text into parts (`voice_clone_text.parts`); `flush` ends one, too. To a listener a part is
what a sentence is there.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from voice_clone_client import AsyncClient, InvalidArgument
from voice_clone_client.long_text.plan import Plan, Report
from voice_clone_client.long_text.text import SentenceChunk
from voice_clone_client.speeches.parts_reader import PartChunk
from voice_clone_client.speeches.streaming_text import AsyncStreamingTextSpeech
from voice_clone_client.types import is_whole
from voice_clone_text.parts import Part, WrittenText
from voice_clone_text.sentences import LINE_ENDS, Sentence

PACE = 12  # characters a second, of slow speech

_SENTENCE_END = re.compile(rf"(?:[.!?…]+[\"')\]»”’]*(?=\s)|[。!?]+[”」』)]*|[{LINE_ENDS}])")


@dataclass(eq=False)
class SpokenPart:
    """What was read of the speech of a part."""

    part: Part
    seconds: float = 0.0
    marks: list[tuple[float, int]] = field(default_factory=list)
    """Seconds of audio, and characters that the model had read by then."""
    read: int | None = None
    """Characters of it that were read in the end; None: its speech goes on."""

    def take(self, chunk: PartChunk) -> None:
        said = chunk.part_info or {}
        self.seconds += len(chunk.samples) / chunk.sample_rate
        if "characters" in said:
            self.marks.append((self.seconds, int(said["characters"])))
        if chunk.last:
            whole = is_whole(said.get("finish_reason")) or not self.marks
            self.read = len(self.part.text) if whole else self.marks[-1][1]

    def heard(self, seconds: float) -> Sentence:
        """What the model had read when it made so much of the audio: its voice is behind that."""
        place = bisect_left(self.marks, (seconds - 1e-6, 0))
        text = self.part.text[: self.marks[min(place, len(self.marks) - 1)][1] if self.marks else 0]
        return Sentence(text, self.part.start, self.part.start + len(text), "sentence")


class WrittenLength:
    """How long a text is that is being written, and when it pauses.

    Args:
        most: characters; None: any.
        flush_after: seconds without text after which it is flushed, if a sentence ends there; None: never.
    """

    def __init__(self, most: int | None, flush_after: float | None) -> None:
        self._most = most
        self._timer = FlushTimer(flush_after, self.flush)
        self._blank = True
        self._ended = False
        self.length = 0
        """Characters of the text so far."""

    def flush(self) -> None:
        """Speak what was written so far, without waiting for more of it."""
        self._timer.stop()

    def _count(self, text: str) -> None:
        """Count more of the text.

        Raises:
            InvalidArgument: the whole text would be too long, or was ended. Text written before is unaffected.
        """
        if self._ended:
            raise InvalidArgument("the text was ended; more text needs another speech")
        if self._most is not None and self.length + len(text) > self._most:
            raise InvalidArgument(f"the text is too long; at most {self._most} characters are allowed")
        self.length += len(text)
        self._blank = self._blank and not text.strip()
        self._timer.write(text)


class StreamingText(WrittenLength, AsyncIterator[SentenceChunk]):
    """The chunks of a text while it is written, part by part; for one event loop. Errors: as of `AsyncLongSpeech`.

    Args:
        speaker: speaks the parts.
        plan: `total_characters`.
        flush_after: seconds without text after which a part ends, if a sentence does; None: never.
        renew_after: seconds that a part may take, if they are less than the model speaks well; None: any.
    """

    def __init__(
        self, speaker: AsyncClient, plan: Plan, flush_after: float | None = None, renew_after: float | None = None
    ) -> None:
        super().__init__(plan.total_characters, flush_after)
        self._speaker = speaker
        self._text = WrittenText(at_once=False, longest=None if renew_after is None else round(PACE * renew_after))
        self._speech: AsyncStreamingTextSpeech | None = None
        self._parts: list[SpokenPart] = []

    def begin(self, options: Mapping[str, Any]) -> None:
        """Start speaking. Text may have been written before.

        Args:
            options: of `AsyncClient.speak_stream`; `deadline` and `max_frames` are those of each part.
        """
        self._speech = self._speaker.speak_written(self._text, of_each_part=True, **options)

    def write(self, text: str) -> None:
        """Add to the text. Raises: InvalidArgument, if it is too long or was ended."""
        self._count(text)
        self._text.write(text)

    def end(self, text: str = "") -> None:
        """Add the last part of the text, or all of it."""
        self.write(text)
        self._timer.stop()
        self._ended = True
        self._text.end()

    def flush(self) -> None:
        super().flush()
        self._text.flush()

    async def __anext__(self) -> SentenceChunk:
        assert self._speech is not None, "it has not begun"
        try:
            chunk = await anext(self._speech)
            if not isinstance(chunk, PartChunk):  # it only says that the text has ended
                if not (self._parts or self._blank):
                    raise InvalidArgument("the text has nothing to speak; it needs at least one letter or digit")
                if not self._parts:
                    raise StopAsyncIteration  # the text is blank
                chunk = await anext(self._speech)
        except BaseException:
            self.close()
            raise
        assert isinstance(chunk, PartChunk)
        if chunk.first:
            self._parts.append(SpokenPart(chunk.part))
        spoken = self._parts[-1]
        spoken.take(chunk)
        return chunk.as_sentence()

    @property
    def info(self) -> Mapping[str, Any] | None:
        """The latest info of the server, joined over all parts so far."""
        return None if self._speech is None else self._speech.info

    def report(self, seconds: float | None = None) -> Report:
        """How much was spoken in the first `seconds` of the audio that was read; None for all of it."""
        left = float("inf") if seconds is None else seconds
        sentences, characters, heard = 0, 0, 0.0
        for spoken in self._parts:
            sent = min(spoken.seconds, left)
            heard += sent
            left -= sent
            if spoken.read is None or sent < spoken.seconds - 1e-6:
                return Report(sentences, characters, heard, spoken.heard(sent) if sent else None, sent)
            sentences, characters = sentences + 1, spoken.part.start + spoken.read
        return Report(sentences, characters, heard, None, 0.0)

    def close(self) -> None:
        """Stop the speech, here and on the server. A task that waits for a chunk gets `Cancelled`."""
        self._timer.stop()
        if self._speech is not None:
            self._speech.close()


class FlushTimer:
    """Flushes a text that pauses at the end of a sentence."""

    def __init__(self, seconds: float | None, flush: Callable[[], None]) -> None:
        self._seconds = seconds
        self._flush = flush
        self._tail = ""  # of what is written
        self._handle: asyncio.TimerHandle | None = None

    def write(self, text: str) -> None:
        """More of the text: the pause begins now."""
        self.stop()
        self._tail = (self._tail + text)[-16:]
        if self._seconds is not None and _at_sentence_end(self._tail):
            self._handle = asyncio.get_running_loop().call_later(self._seconds, self._flush)

    def stop(self) -> None:
        """It does not flush before more text comes."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def _at_sentence_end(text: str) -> bool:
    text = text.rstrip(" ")[-8:]
    found = [*_SENTENCE_END.finditer(text + " ")]
    return bool(found) and found[-1].end() == len(text)
