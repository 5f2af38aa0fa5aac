"""A long text as one speech of the synchronous client; `async_long_speech` says how it is made."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from contextvars import copy_context
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from voice_clone_text.sentences import Sentence

from ..callers import in_time
from ..errors import Cancelled
from ..servers.channel import END_SECONDS
from ..speeches.speech import Speech
from .plan import Plan
from .text import LongText, SentenceChunk, SpokenSentence


class Speaker(Protocol):
    """What speaks: `voice_clone_client.Client`."""

    def speak(self, text: str, *args: Any, **options: Any) -> Speech:
        """Begin to speak `text`; `options` are those of `Client.speak`, `args` are none."""


class LongSpeech(Speech):
    """A speech of any length, as `Speech`. A thread makes it sentence by sentence, and ends with it.

    Args:
        speaker: speaks the sentences.
        plan: how the text is split, spoken and joined; one sentence is made at a time.
        text: all of it.
        at_once: it is not split.
        options, deadline: see `LongText.begin`.
    """

    def __init__(
        self,
        speaker: Speaker,
        plan: Plan,
        text: str,
        options: Mapping[str, Any],
        deadline: float | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        self._made = _Made(speaker, plan)
        reader: Any = self._made  # which also says what was read of it
        super().__init__(self._made, time.monotonic(), reader)
        self._made.say(text, at_once=at_once)
        self._made.begin(options, deadline)
        threading.Thread(target=copy_context().run, args=(self._made.run,), daemon=True).start()
        weakref.finalize(self, self._made.cancel)  # the thread does not know this object, so it can be forgotten

    def __iter__(self) -> LongSpeech:
        return self

    def __next__(self) -> SentenceChunk:
        chunk = super().__next__()
        assert isinstance(chunk, SentenceChunk)
        return chunk

    def read(self) -> tuple[NDArray[np.float32], int]:
        """As `Speech.read`. A sentence whose end the model missed is made again, as the plan says."""
        self._made.hold()
        return super().read()

    def _next(self) -> SentenceChunk:
        try:
            chunk = self._made.next()
        except BaseException as error:
            if isinstance(error, Exception):
                self._progress.fail(error)
            self.close()
            raise
        if chunk is None:
            self._progress.end()
            raise StopIteration
        return chunk

    def _let_end(self) -> None:
        self._made.let_end()


class _Made(LongText[SpokenSentence]):
    """The speech as its thread makes it."""

    def __init__(self, speaker: Speaker, plan: Plan) -> None:
        self._changed = threading.Condition()  # holds the lock of all that the two threads share
        self._cancelled = False
        self._speaker = speaker
        self._spoken: Speech | None = None
        super().__init__(plan)

    def run(self) -> None:
        """Make the sentences; returns when all of them were read, or nothing more is wanted."""
        while (speech := self._wait_for_due()) is not None:
            try:
                again = True
                while again:
                    again = self._make(speech)
            except Exception as error:  # of any kind; the reader of this sentence raises it
                with self._changed:
                    self._fail(speech, error)
            self._advance()

    def next(self) -> SentenceChunk | None:
        """The next chunk; waits for it. None: there is none any more.

        Raises:
            Exception: see `LongText._take`. Cancelled: nothing more is wanted.
        """
        with self._changed:
            while self._over or not self._cancelled:
                chunk = self._take()
                if chunk is not None or self._over:
                    self._advance()
                    return chunk
                self._changed.wait()
        raise Cancelled("the speech was closed before its end")

    def hold(self) -> None:
        with self._changed:
            super().hold()

    def cancel(self) -> None:
        """Nothing more is wanted. A sentence whose last chunk is here is not stopped any more."""
        with self._changed:
            self._cancelled = True
            self._advance()
            spoken = self._spoken
        if spoken is not None and spoken.status.state == "running":
            spoken.close()

    def let_end(self) -> None:
        """Wait for the end of the last stream."""
        with self._changed:
            self._changed.wait_for(lambda: self._speeches[-1].made, END_SECONDS)

    def _wait_for_due(self) -> SpokenSentence | None:
        with self._changed:
            while not (self._cancelled or self._over):
                for speech in self._due():
                    return speech
                self._changed.wait()
        return None

    def _make(self, speech: SpokenSentence) -> bool:
        """Make a sentence. Whether it is to be made again."""
        with in_time(speech.index == 0):
            begun = self._speaker.speak(speech.sentence.text, **self._arguments(speech))
        with begun as spoken:
            with self._changed:
                if self._cancelled:
                    return False
                self._spoken = spoken
            for chunk in spoken:
                with self._changed:
                    speech.put(chunk)
                    self._advance()
        with self._changed:
            return self._end(speech, spoken.info)

    def _new_speech(self, sentence: Sentence, index: int, pause: float) -> SpokenSentence:
        return SpokenSentence(sentence, index, pause)

    def _advance(self) -> None:
        with self._changed:
            self._changed.notify_all()
