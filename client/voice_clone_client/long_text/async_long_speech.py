"""A text of any length, or one that is still being written, as one speech, sentence by sentence in one voice.

    speech = AsyncLongSpeech(client, Plan())
    speech.begin({"voice": "ada", "seed": 7})
    speech.write("First sentence. Second sen")
    speech.write("tence.")
    speech.end()
    async for chunk in speech:
        ...

While the chunks of one sentence are read, the server makes a bounded number of further sentences, and none while
`MOST_UNREAD` seconds wait to be read. So a reader that is slow or stops keeps no server busy and fills no memory. A
sentence that was begun is made to its end: a paused one would keep its place on the server.

The samples of the sentences follow each other unchanged; a speech begins and ends near silence. A seed makes the speech
repeatable: each sentence is the speech of its text with `sentence_seed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ..errors import Cancelled, InvalidArgument
from ..finish_reasons import worse
from ..sentences import Sentence, SentenceSplitter
from ..types import Chunk
from .async_sentence import AsyncSentence, SentenceChunk
from .plan import MOST_UNREAD, Plan, Report, sentence_seed
from .speaker import Speaker

_COUNTED = ("text_tokens", "reference_frames", "frames")  # entries of `info` that add up over sentences


class AsyncLongSpeech(AsyncIterator[SentenceChunk]):
    """The chunks of a text, sentence by sentence; for one event loop.

    An error of a sentence is raised after the audio before it, and ends the speech. A missed end is one, if `options`
    of `begin` ask for `require_whole`. A text without a letter or digit is such an error, InvalidArgument; a blank text
    has no chunks.

    Args:
        speaker: speaks the sentences.
        plan: how the text is split, spoken and joined.

    Raises:
        InvalidArgument: the plan is invalid.
    """

    def __init__(self, speaker: Speaker, plan: Plan) -> None:
        if plan.prefetch < 0 or plan.parallel < 1:
            raise InvalidArgument("a speech needs prefetch >= 0 and parallel >= 1")
        self._speaker = speaker
        self._options: Mapping[str, Any] | None = None
        self._plan = plan
        self._splitter = SentenceSplitter(
            plan.granularity, min_characters=plan.min_characters, max_characters=plan.max_characters
        )
        self._speeches: list[AsyncSentence] = []
        self._current = 0  # index of the speech whose chunks are read
        self._chunks = 0
        self._characters = 0
        self._ended = False
        self._blank = True
        self._mute = False  # the text has only punctuation
        self._closed = asyncio.Event()
        self._changed = asyncio.Event()
        self._info: dict[str, Any] | None = None
        self._counts: Mapping[str, int] = {}
        self._finish_reason = "stop"  # the worst of the sentences

    def begin(self, options: Mapping[str, Any]) -> None:
        """Start speaking. Text may have been written before.

        Args:
            options: of `Speaker.speak`, for each sentence; `seed` is the seed of the whole speech.
        """
        self._options = dict(options)
        self._start_tasks()

    def write(self, text: str) -> None:
        """Add to the text.

        Raises:
            InvalidArgument: the whole text would be too long, or was ended. Text written before is unaffected.
        """
        self._read(text, final=False)

    def end(self, text: str = "") -> None:
        """Add the last part of the text, or all of it; an incomplete sentence at its end is spoken too.

        Raises:
            InvalidArgument: as for `write`.
        """
        self._read(text, final=True)

    def _read(self, text: str, final: bool) -> None:
        if self._ended:
            raise InvalidArgument("the text was ended; more text needs another speech")
        most = self._plan.total_characters
        if self._characters + len(text) > most:
            raise InvalidArgument(f"the text is too long; at most {most} characters are allowed")
        self._characters += len(text)
        self._blank = self._blank and not text.strip()
        try:
            self._feed(text, final)
        finally:
            self._ended = final
            self._mute = final and not self._blank and not self._speeches
            self._start_tasks()
            self._changed.set()

    def flush(self) -> None:
        """Speak what was written so far, though its last sentence may have no end."""
        try:
            self._feed("", True)
        finally:
            self._start_tasks()
            self._changed.set()

    def _feed(self, text: str, final: bool) -> None:
        """Find the sentences that `text` completes."""
        for sentence in self._splitter.feed(text, final):
            if sentence.spoken:
                self._add(sentence)

    def _add(self, sentence: Sentence) -> None:
        index = len(self._speeches)
        if index >= self._plan.total_sentences:
            raise InvalidArgument(f"the text is too long; at most {self._plan.total_sentences} sentences are allowed")
        pause = self._plan.pause_after(self._speeches[-1].sentence.ending) if self._speeches else 0.0
        self._speeches.append(AsyncSentence(sentence, index, pause))

    def _start_tasks(self) -> None:
        """Start the sentences that the plan allows now."""
        if self._options is None or self._closed.is_set():
            return
        window = self._window()
        live = sum(speech.live for speech in window)
        for speech in window:
            if speech.task is None and live < self._plan.parallel and self._unread < MOST_UNREAD:
                live += 1
                speech.seed = sentence_seed(self._options.get("seed"), speech.index)
                speech.start(self._speaker, self._options).add_done_callback(self._ended_one)

    def _ended_one(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._start_tasks()

    def _window(self) -> list[AsyncSentence]:
        """The sentence that is read, and those that the plan makes ahead of it."""
        end = self._current + 1 + self._plan.prefetch
        if self._current < len(self._speeches) and self._speeches[self._current].complete:
            end += 1  # all of its audio was read
        return self._speeches[self._current : end]

    @property
    def _unread(self) -> float:
        """Seconds of audio that wait to be read."""
        return sum(speech.unread for speech in self._window())

    async def __anext__(self) -> SentenceChunk:
        try:
            while not self._closed.is_set():
                if self._current < len(self._speeches):
                    speech = self._speeches[self._current]
                    result = await speech.results.get()
                    if self._closed.is_set():
                        break
                    if isinstance(result, Exception):  # also after the last chunk: a missed end
                        self.close()
                        raise result
                    if result is not None:
                        return self._take(speech, result)
                    self._current += 1
                    continue
                if self._mute:
                    raise InvalidArgument("the text has nothing to speak; it needs at least one letter or digit")
                if self._ended:
                    raise StopAsyncIteration
                self._changed.clear()
                await self._changed.wait()
        except asyncio.CancelledError:
            self.close()
            raise
        raise Cancelled("the speech was closed before its end")

    def _take(self, speech: AsyncSentence, chunk: Chunk) -> SentenceChunk:
        taken = speech.take(chunk, self._chunks)
        self._chunks += 1
        if chunk.info:
            self._add_info(chunk.info, speech)
        self._start_tasks()
        return taken

    def _add_info(self, info: Mapping[str, Any], speech: AsyncSentence) -> None:
        counts = {key: self._counts.get(key, 0) + info[key] for key in _COUNTED if key in info}
        self._info = {**info, **counts, "sentences": speech.index + 1}
        if speech.complete:
            self._counts = counts
            self._finish_reason = worse(self._finish_reason, str(info.get("finish_reason")))
            self._info["finish_reason"] = self._finish_reason

    @property
    def length(self) -> int:
        """Characters of the text so far."""
        return self._characters

    @property
    def info(self) -> Mapping[str, Any] | None:
        """The latest info of the server; tokens and frames are the sums over all sentences so far, and the finish
        reason is the worst of theirs."""
        return self._info

    def report(self, seconds: float | None = None) -> Report:
        """How much was spoken in the first `seconds` of the audio that was read; None for all of it."""
        left = float("inf") if seconds is None else seconds
        sentences, characters, heard = 0, 0, 0.0
        for speech in self._speeches:
            sent = min(speech.sent or 0.0, left)
            heard += sent
            left -= sent
            if not speech.complete or sent < (speech.sent or 0.0) - 1e-6:
                return Report(sentences, characters, heard, speech.heard(sent) if sent else None, sent)
            sentences, characters = sentences + 1, speech.sentence.end
        return Report(sentences, characters, heard, None, 0.0)

    def close(self) -> None:
        """Stop the speech, here and on the server. A task that waits for a chunk gets `Cancelled`."""
        self._closed.set()
        self._changed.set()
        for speech in self._speeches[self._current :]:
            if speech.task is None:
                break
            speech.stop()
