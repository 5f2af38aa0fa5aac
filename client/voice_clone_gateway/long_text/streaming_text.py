"""A text that goes to the server as it is written, token by token, and is spoken in one piece.

As an `AsyncLongSpeech`, but nothing waits for the end of a sentence, and prosody does not start again with each. A part
of the text that ends (by `flush`, where the plan says so, or with its next sentence while `MOST_UNREAD` seconds wait to
be read) is one speech; the text behind it is the next one.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from voice_clone_client import AsyncClient, Chunk
from voice_clone_client.long_text.async_long_speech import AsyncLongSpeech
from voice_clone_client.long_text.async_sentence import AsyncSentence
from voice_clone_client.long_text.plan import MOST_UNREAD, Plan
from voice_clone_client.long_text.speaker import Speech
from voice_clone_client.long_text.text import SentenceChunk
from voice_clone_client.sentences import LINE_ENDS, SPOKEN, Sentence, WholeCharacters

_SENTENCE_END = re.compile(rf"(?:[.!?…]+[\"')\]»”’]*(?=\s)|[。!?]+[”」』)]*|[{LINE_ENDS}])")


@dataclass(eq=False)
class WrittenPart(AsyncSentence):
    """A part of the text: `sentence` grows while it is written."""

    _pieces: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)
    _marks: list[tuple[float, int]] = field(default_factory=list)
    """Seconds of audio, and characters that the model had read by then."""

    def write(self, text: str) -> None:
        """More of it."""
        sentence = self.sentence
        self.sentence = replace(sentence, text=sentence.text + text, end=sentence.end + len(text))
        self._pieces.put_nowait(text)

    def end(self) -> None:
        """It is complete."""
        self._pieces.put_nowait(None)

    def begin(self, speaker: Any, options: Mapping[str, Any]) -> Speech:
        speech: Speech = speaker.speak_stream(self._text(), **options)
        return speech

    def take(self, chunk: Chunk, index: int) -> SentenceChunk:
        taken = super().take(chunk, index)
        if chunk.info and "characters" in chunk.info:
            self._marks.append((self.sent or 0.0, int(chunk.info["characters"])))
        return taken

    def heard(self, seconds: float) -> Sentence:
        """What the model had read when it made so much of the audio: its voice is behind that."""
        place = bisect_left(self._marks, (seconds - 1e-6, 0))
        read = self._marks[min(place, len(self._marks) - 1)][1] if self._marks else 0
        return replace(self.sentence, text=self.sentence.text[:read], end=self.sentence.start + read)

    async def _text(self) -> AsyncIterator[str]:
        while (piece := await self._pieces.get()) is not None:
            yield piece


class StreamingText(AsyncLongSpeech):
    """The chunks of a text while it is written, part by part; for one event loop. Errors: as of `AsyncLongSpeech`.

    Args:
        speaker: speaks the parts.
        plan: `prefetch`, `parallel` and `total_characters`.
        flush_after: seconds without text after which a part ends, if a sentence does; None: never.
        renew_after: seconds of audio after which a part ends with the next sentence; None: never.
    """

    def __init__(
        self, speaker: AsyncClient, plan: Plan, flush_after: float | None = None, renew_after: float | None = None
    ) -> None:
        super().__init__(speaker, plan)
        self._flush_after, self._renew_after = flush_after, renew_after
        self._timer: asyncio.TimerHandle | None = None
        self._part: WrittenPart | None = None
        self._before = ""  # text that has no letter or digit yet
        self._place = 0  # of the next character
        self._whole = WholeCharacters()

    def flush(self) -> None:
        self._end_part()
        self._start_tasks()

    def close(self) -> None:
        self._stop_timer()
        super().close()

    def _feed(self, text: str, final: bool) -> None:
        self._stop_timer()
        text = self._whole.feed(text, final)
        if self._part is not None and self._is_due(self._part) and (ends := [*_SENTENCE_END.finditer(text)]):
            self._write(text[: ends[-1].end()])
            self._end_part()
            text = text[ends[-1].end() :]
        self._write(text)
        if final:
            self._end_part()
        elif self._part is not None and self._flush_after is not None and _at_sentence_end(self._part.sentence.text):
            self._timer = asyncio.get_running_loop().call_later(self._flush_after, self.flush)

    def _is_due(self, part: WrittenPart) -> bool:
        if part.live and self._unread >= MOST_UNREAD:  # the text behind it waits until the reader has come closer
            return True
        return self._renew_after is not None and (part.sent or 0.0) >= self._renew_after

    def _write(self, text: str) -> None:
        if self._part is None:
            before = self._before + text
            self._before = before.lstrip()
            self._place += len(before) - len(self._before)
            if SPOKEN.search(before) is None:
                return
            text, self._before = self._before, ""
            self._part = WrittenPart(Sentence("", self._place, self._place, "sentence"), len(self._speeches), 0.0)
            self._speeches.append(self._part)
        if text:
            self._part.write(text)
            self._place += len(text)

    def _end_part(self) -> None:
        self._stop_timer()
        if self._part is not None:
            self._part.end()
            self._part = None
        self._place += len(self._before)
        self._before = ""

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _at_sentence_end(text: str) -> bool:
    text = text.rstrip(" ")[-8:]
    found = [*_SENTENCE_END.finditer(text + " ")]
    return bool(found) and found[-1].end() == len(text)
