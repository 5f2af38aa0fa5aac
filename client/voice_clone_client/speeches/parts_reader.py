"""The parts of a text that is written while it is spoken, joined to one speech. No I/O."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from voice_clone_text.parts import Part, WrittenText
from voice_clone_text.sentences import Sentence

from ..errors import BrokenStream, ConnectionFailed, DeadlineExceeded, Internal, Overloaded, VoiceCloneError
from ..joined_info import JoinedInfo
from ..long_text.plan import sentence_seed
from ..long_text.text import SentenceChunk
from ..responses import SpeechReader
from ..types import Chunk, is_whole

WAIT_SECONDS = 60.0  # for a server that is too busy to begin a further part


@dataclass(frozen=True, eq=False)
class PartChunk(Chunk):
    """A chunk of a text in parts. `index` and `info` are those of the whole speech."""

    part: Part
    first: bool
    """Whether it is the first one of its part."""
    last: bool
    part_info: Mapping[str, Any] | None
    """The server's, on the part alone."""

    def as_sentence(self) -> SentenceChunk:
        """The chunk of a long speech whose sentences are the parts, as far as they are written."""
        said, part = self.part_info or {}, self.part
        whole = self.last and is_whole(said.get("finish_reason"))
        return SentenceChunk(
            samples=self.samples,
            sample_rate=self.sample_rate,
            index=self.index,
            final=self.final,
            info=self.part_info,
            sentence=Sentence(part.text, part.start, part.start + len(part.text), "sentence"),
            sentence_index=part.index,
            seed=part.seed,
            first=self.first,
            last=self.last,
            growing=not part.ended,
            read=None if whole else said.get("characters"),
        )


class PartsReader(SpeechReader):
    """Joins the chunks of parts to one speech.

    Args:
        text: that is spoken.
        seed: of the whole speech.
        max_frames: likewise; None: it has no limit, but each part may have one.
        require_whole: as of `SpeechReader`.
    """

    def __init__(self, text: WrittenText, seed: int | None, max_frames: int | None, require_whole: bool) -> None:
        super().__init__(require_whole, None)
        self.text = text
        self._seed = seed
        self._max_frames = max_frames
        self._parts = 0
        self._first = False  # whether the next chunk is the first of its part
        self._start = 0  # where the part that began last begins in the text
        self._gives_up: float | None = None  # when to stop waiting for a server that is full
        self._joined = JoinedInfo()

    def begin(self) -> Part | None:
        """Begin the next part, if one is there."""
        part, self._gives_up = self.text.begin(), None
        if part is not None:
            part.index, self._first, self._start = self._parts, True, part.start
            self._parts += 1
            part.seed = sentence_seed(self._seed, part.index)
            if self._max_frames is not None:
                part.max_frames = max(1, self._max_frames - self._joined.info.get("frames", 0))
        return part

    def may_wait(self, part: Part, seconds: float, error: VoiceCloneError) -> bool:
        """Return whether a part that failed after so many seconds of audio may be asked for again. A later part may, if
        the server was full."""
        if not isinstance(error, Overloaded) or part.index == 0 or seconds:
            return False
        now = time.monotonic()
        self._gives_up = self._gives_up or now + WAIT_SECONDS
        return now < self._gives_up

    def take(self, part: Part, chunk: Chunk) -> PartChunk:
        """Make the next chunk of a part one of the speech."""
        said = dict(chunk.info or {})
        if self._seed is None:
            self._seed = said.get("seed")  # the server's choice
        if "seed" in said:
            said["seed"] = self._seed  # that of the whole speech, which it repeats
        self.sample_rate = chunk.sample_rate
        said["parts"] = self._parts
        if chunk.final:
            self.text.learn(None)  # if no answer came before its end
            reason = said.get("finish_reason")
            goes_on = reason == "text_left" and self.text.go_on(part, int(said.get("characters", 0)))
            self.finished = (not goes_on and self._ends(part, reason)) or self.text.over
            said["finish_reason"] = "stop" if goes_on else reason
            if self.text.continued:
                said["continued"] = self.text.continued
        if "characters" in said:
            said["characters"] += part.start
        info = self._joined.add(said)
        if chunk.final:
            self._joined.end()
        self.info = self._joined.info
        first, self._first = self._first, False
        index, self._next_index = self._next_index, self._next_index + 1
        return PartChunk(
            samples=chunk.samples,
            sample_rate=chunk.sample_rate,
            index=index,
            final=self.finished,
            info=info if chunk.info else None,
            part=part,
            first=first,
            last=chunk.final,
            part_info=chunk.info,
        )

    def last(self) -> Chunk:
        """Return the final chunk of a speech whose text ended after its last part: an empty one."""
        self.finished = True
        rate = self.sample_rate or 1  # of a text without a word: it has no part
        return Chunk(np.zeros(0, np.float32), rate, self._next_index, True, self.info)

    def failed(self, error: VoiceCloneError) -> VoiceCloneError:
        """Add to the error of a part how far the text was read, and from where it must be spoken again."""
        characters = (self.info or {}).get("characters")
        if not characters or not isinstance(error, _LOST):
            return error
        spoken = f"; all of the first {self._start} characters was spoken" if self._start else ""
        return type(error)(f"{error}; the speech came to character {characters} of its text{spoken}")

    def _ends(self, part: Part, reason: str | None) -> bool:
        """Whether the speech ends with this part, whatever its text."""
        if not part.ended:  # an older server, which does not say that text is left
            return True
        return reason in ("text_left", "text_timeout") or (reason == "length" and self._max_frames is not None)


_LOST = (BrokenStream, ConnectionFailed, DeadlineExceeded, Internal, Overloaded)
