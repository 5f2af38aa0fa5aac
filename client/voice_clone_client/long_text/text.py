"""A text that is spoken sentence by sentence: which sentence is made next, which chunk is read next. It never waits."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from voice_clone_text.sentences import MIN_CHARACTERS, Sentence, SentenceSplitter

from ..backends import Job
from ..errors import DeadlineExceeded, Incomplete, InvalidArgument
from ..joined_info import JoinedInfo
from ..servers.channel import shorter
from ..types import Chunk, is_whole
from .plan import MOST_HELD, MOST_UNREAD, Plan, Report, sentence_seed
from .speaker import Speech


@dataclass(frozen=True, eq=False)
class SentenceChunk(Chunk):
    """A chunk of a long speech. `index` counts through all of it, `info` is that of the sentence. `final` needs a text
    whose end is known: it is False on each chunk that is read before."""

    sentence: Sentence
    sentence_index: int
    """0, 1, 2, ...; sentences without a letter or digit are not spoken and do not count."""
    seed: int | None
    """The seed of the sentence; None if the server chose one."""
    first: bool
    """Whether this is the first chunk of the sentence. It includes the pause before it."""
    last: bool
    """Whether this is the last chunk of the sentence."""
    growing: bool = field(default=False, kw_only=True)
    """Whether more of the sentence may be written."""
    read: int | None = field(default=None, kw_only=True)
    """How many characters of the sentence the model has read; None: all."""
    places: Callable[[int, int], tuple[int, int]] | None = field(default=None, kw_only=True)
    """See `written`; None: it is spoken as it is written."""

    @property
    def written(self) -> Callable[[int, int], tuple[int, int]]:
        """Says where a part [start, end) of the sentence is in the text of the speech. It does not hold the samples."""
        begin = self.sentence.start
        return self.places or (lambda start, end: (begin + start, begin + end))


@dataclass(eq=False)
class SpokenSentence:
    """A sentence, and how far it is made and read."""

    sentence: Sentence
    index: int
    pause: float
    """Seconds of silence before it."""
    seed: int | None = None
    began: float | None = None
    """When it was first asked for, on `time.monotonic`."""
    attempts: int = 0
    chunks: deque[Chunk] = field(default_factory=deque)
    """Made, but not read."""
    unread: float = 0.0
    """Seconds of audio in them."""
    last_is_here: bool = False
    """Whether its last chunk was made; its stream may not have ended."""
    made: bool = False
    """Whether nothing more of it comes: it is made to its end, or has failed."""
    error: Exception | None = None
    finish_reason: str | None = None
    sent: float | None = None
    """Seconds of audio that were read, with the pause; None before the first chunk."""
    complete: bool = False
    """Whether all of it was read."""
    job: Job[None] | None = None
    """Makes it; None before that."""
    speech: Speech | None = None
    """The server's; None before it was asked for."""

    @property
    def live(self) -> bool:
        return self.began is not None and not self.made

    @property
    def missed(self) -> bool:
        """Whether the model missed its end."""
        return self.made and self.error is None and not is_whole(self.finish_reason)

    def stop(self) -> None:
        """Stop it, here and on the server; but not if its last chunk is here."""
        self.chunks.clear()
        if self.job is not None and not self.last_is_here:
            self.job.cancel()
            if self.speech is not None:
                self.speech.close()

    def put(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.last_is_here = chunk.final
        self.unread += len(chunk.samples) / chunk.sample_rate

    def forget(self) -> None:
        """What was made of it is not wanted: it is made again."""
        self.chunks.clear()
        self.unread, self.made, self.finish_reason, self.last_is_here = 0.0, False, None, False

    def take(self, chunk: Chunk, index: int) -> SentenceChunk:
        """One of `chunks` as it is read."""
        first = self.sent is None
        samples = chunk.samples
        self.unread -= len(samples) / chunk.sample_rate
        if first and self.pause:
            samples = np.concatenate([np.zeros(round(self.pause * chunk.sample_rate), np.float32), samples])
        self.sent = (self.sent or 0.0) + len(samples) / chunk.sample_rate
        self.complete = chunk.final
        return SentenceChunk(
            samples=samples,
            sample_rate=chunk.sample_rate,
            index=index,
            final=False,
            info=chunk.info,
            sentence=self.sentence,
            sentence_index=self.index,
            seed=self.seed,
            first=first,
            last=chunk.final,
        )


class LongText(ABC):
    """A text, its sentences, and the chunks that were made of them.

    Args:
        plan: how the text is split, spoken and joined.
        retried: called with the family of each further attempt at a sentence; None is that of the client.

    Raises:
        InvalidArgument: the plan is invalid.
    """

    def __init__(self, plan: Plan, retried: Callable[[str | None], None] = lambda model: None) -> None:
        plan.check()
        self._plan = plan
        self._retried = retried
        self._splitter = self._new_splitter(0)
        self._options: dict[str, Any] | None = None
        self._require_whole = False
        self._seconds: float | None = None  # of each sentence
        self._until: float | None = None  # of all of it
        self._held = plan.hold
        self._speeches: list[SpokenSentence] = []
        self._current = 0  # index of the speech whose chunks are read
        self._at_once = False  # the whole text is one speech of the server
        self._chunks = 0
        self._characters = 0
        self._ended = False
        self._blank = True
        self._joined = JoinedInfo()
        self.sample_rate = 0
        self.retries = 0
        """Further attempts at sentences whose end the model missed."""

    def begin(self, options: Mapping[str, Any], deadline: float | None = None) -> None:
        """Start speaking. Text may have been written before.

        Args:
            options: of `speak`, for each sentence; `seed` is the seed of the whole speech.
            deadline: maximum seconds of the whole speech.
        """
        self._options = dict(options)
        self._require_whole = self._options.pop("require_whole", False)
        self._seconds = self._options.pop("deadline", None)
        self._until = None if deadline is None else time.monotonic() + deadline
        self._advance()

    def say(self, text: str, *, at_once: bool = False) -> None:
        """All of the text, which may then be split better than one that comes in pieces. A short one is not split.

        Args:
            at_once: a long one is not split either.

        Raises:
            InvalidArgument: as for `write`.
        """
        text = text if text.strip() else ""  # which the server refuses
        self._at_once = at_once or len(text) <= self._plan.max_characters
        self._splitter = self._new_splitter(min(MIN_CHARACTERS, self._plan.max_characters))
        self._read(text, final=True)

    def write(self, text: str) -> None:
        """Add to the text.

        Raises:
            InvalidArgument: the whole text would be too long, or was ended. Text written before is unaffected.
        """
        self._read(text, final=False)

    def end(self, text: str = "") -> None:
        """Add the last part of the text; an incomplete sentence at its end is spoken too.

        Raises:
            InvalidArgument: as for `write`.
        """
        self._read(text, final=True)

    def flush(self) -> None:
        """Speak what was written so far, though its last sentence may have no end."""
        try:
            self._feed("", True)
        finally:
            self._advance()

    def hold(self) -> None:
        """From now on a sentence is read when it is whole. One that is not, and of which nothing was read, is made
        again."""
        self._held = True
        for speech in self._window():
            if speech.missed and self._may_repeat(speech):
                self._repeat(speech)
                speech.began = None
        self._advance()

    @property
    def length(self) -> int:
        """Characters of the text so far."""
        return self._characters

    @property
    def info(self) -> Mapping[str, Any] | None:
        """The latest info of the server; tokens and frames are the sums over all sentences so far, and the finish
        reason is the worst of theirs. It has the number of sentences, unless the text was spoken at once, and that of
        the `retries`, if there were any."""
        return self._joined.info or None

    @property
    def finish_reason(self) -> str | None:
        """How the speech ended: the worst of the sentences' reasons; None before its end."""
        return self._joined.info.get("finish_reason") if self.finished else None

    @property
    def finished(self) -> bool:
        """Whether all of the text was spoken and read."""
        return self._ended and bool(self._speeches) and self._speeches[-1].complete

    @property
    def whole(self) -> bool:
        """Whether all chunks were read, and each sentence ended with `stop` or `length`."""
        return is_whole(self.finish_reason)

    def report(self, seconds: float | None = None) -> Report:
        """How much was spoken in the first `seconds` of the audio that was read; None for all of it."""
        left = float("inf") if seconds is None else seconds
        sentences, characters, heard = 0, 0, 0.0
        for speech in self._speeches:
            sent = min(speech.sent or 0.0, left)
            heard += sent
            left -= sent
            if not speech.complete or sent < (speech.sent or 0.0) - 1e-6:
                return Report(sentences, characters, heard, speech.sentence if sent else None, sent)
            sentences, characters = sentences + 1, speech.sentence.end
        return Report(sentences, characters, heard, None, 0.0)

    def _new_splitter(self, least: int) -> SentenceSplitter:
        plan = self._plan
        return SentenceSplitter(plan.granularity, min_characters=least, max_characters=plan.max_characters)

    @abstractmethod
    def _advance(self) -> None:
        """Something has changed: begin what is due, and wake who waits."""

    def _read(self, text: str, final: bool) -> None:
        if self._ended:
            raise InvalidArgument("the `text` was ended; more text needs another speech")
        most = self._plan.total_characters
        if most is not None and self._characters + len(text) > most:
            raise InvalidArgument(f"the `text` is too long; at most {most} characters are allowed")
        self._characters += len(text)
        self._blank = self._blank and not text.strip()
        try:
            self._feed(text, final)
        finally:
            self._ended = final
            self._advance()

    def _feed(self, text: str, final: bool) -> None:
        """Find the sentences that `text` completes."""
        if self._at_once:
            self._add(Sentence(text, 0, len(text), "sentence"))
            return
        for sentence in self._splitter.feed(text, final):
            if sentence.spoken:
                self._add(sentence)

    def _add(self, sentence: Sentence) -> None:
        index, most = len(self._speeches), self._plan.total_sentences
        if most is not None and index >= most:
            raise InvalidArgument(f"the `text` is too long; at most {most} sentences are allowed")
        pause = self._plan.pause_after(self._speeches[-1].sentence.ending) if self._speeches else 0.0
        self._speeches.append(SpokenSentence(sentence, index, pause))

    def _due(self) -> Iterator[SpokenSentence]:
        """The sentences that are to be made now; each is taken for one that is begun."""
        if self._options is None:
            return
        window = self._window()
        live = sum(speech.live for speech in window)
        for speech in window:
            if speech.error is not None:
                return  # what comes after it is not wanted
            if speech.began is None and live < self._plan.parallel and self._unread < MOST_UNREAD:
                live += 1
                speech.began = time.monotonic()
                speech.seed = sentence_seed(self._options.get("seed"), speech.index)
                yield speech

    def _window(self) -> list[SpokenSentence]:
        """The sentence that is read, and those that the plan makes ahead of it."""
        end = self._current + 1 + self._plan.prefetch
        if self._current < len(self._speeches) and self._speeches[self._current].complete:
            end += 1  # all of its audio was read
        return self._speeches[self._current : end]

    @property
    def _unread(self) -> float:
        """Seconds of audio that wait to be read."""
        return sum(speech.unread for speech in self._window())

    def _arguments(self, speech: SpokenSentence) -> dict[str, Any]:
        """The options with which a sentence is spoken. All its attempts share its time.

        Raises:
            DeadlineExceeded: there is none left.
        """
        assert self._options is not None and speech.began is not None
        speech.attempts += 1
        now = time.monotonic()
        spent = 0.0 if speech.attempts == 1 else now - speech.began
        own = None if self._seconds is None else self._seconds - spent
        left = shorter(own, None if self._until is None else self._until - now)
        if left == 0.0:  # gRPC may let such a call pass
            raise DeadlineExceeded("the server did not answer in time")
        return {**self._options, "seed": speech.seed, **({} if left is None else {"deadline": left})}

    def _end(self, speech: SpokenSentence, info: Mapping[str, Any] | None) -> bool:
        """All of a sentence was made; `info` is the server's on it. Whether it is to be made again at once."""
        speech.made, speech.finish_reason = True, (info or {}).get("finish_reason")
        if not (speech.missed and self._may_repeat(speech)):
            return False
        self._repeat(speech)
        return True

    def _fail(self, speech: SpokenSentence, error: Exception) -> None:
        """A sentence cannot be made, or no further."""
        speech.made, speech.error = True, error

    def _may_repeat(self, speech: SpokenSentence) -> bool:
        options = self._options or {}
        drawn = options.get("seed") is None and options.get("do_sample") is not False
        free = speech.sent is None and (self._held or speech.index > self._current)
        return drawn and free and speech.attempts <= self._plan.retries

    def _repeat(self, speech: SpokenSentence) -> None:
        speech.forget()
        self.retries += 1
        self._retried((self._options or {}).get("model"))

    def _take(self) -> SentenceChunk | None:
        """The next chunk; None if there is none yet, or none any more: see `_over`.

        Raises:
            Exception: that of the sentence that is read.
            Incomplete: the model missed its end.
            InvalidArgument: the text has only punctuation.
        """
        while self._current < len(self._speeches):
            speech = self._speeches[self._current]
            free = speech.made or not self._held or speech.sent is not None or speech.unread >= MOST_HELD
            if speech.chunks and free:
                return self._took(speech, speech.take(speech.chunks.popleft(), self._chunks))
            if not speech.made or speech.chunks:
                return None
            if speech.error is not None:
                raise speech.error
            if self._require_whole and speech.missed:
                raise Incomplete(speech.finish_reason)
            self._current += 1
        if self._ended and not self._speeches and not self._blank:
            raise InvalidArgument("the `text` has nothing to speak; it needs at least one letter or digit")
        return None

    @property
    def _over(self) -> bool:
        return self._ended and self._current == len(self._speeches)

    def _took(self, speech: SpokenSentence, chunk: SentenceChunk) -> SentenceChunk:
        self._chunks += 1
        self.sample_rate = chunk.sample_rate
        if chunk.info:
            self._add_info(chunk.info, speech.index)
        if chunk.last:
            self._joined.end()
        if chunk.last and self._ended and speech is self._speeches[-1]:
            chunk = replace(chunk, final=True)
        return chunk

    def _add_info(self, info: Mapping[str, Any], sentence: int) -> None:
        added = dict(info)
        if "seed" in info and (seed := (self._options or {}).get("seed")) is not None:
            added["seed"] = seed  # that of the whole speech
        if not self._at_once:
            added["sentences"] = sentence + 1
        self._joined.add(added)
        if self.retries:
            self._joined.info["retries"] = self.retries
