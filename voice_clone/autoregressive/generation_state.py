"""One stream of frames in the generator: how it draws, how much text it has, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from voice_clone.autoregressive.frame_head import Row
from voice_clone.autoregressive.philox import Draws
from voice_clone.autoregressive.steps import PromptPiece
from voice_clone.autoregressive.talker import Pauses, Prefix, TextFeed
from voice_clone.lru_cache import Origin

LONGEST_CYCLE = 8  # frames


class Repetition:
    """Notices a model that has read all its text and repeats itself.

    It counts for how long codebook 0 of a stream, which carries what is said, has repeated a cycle of a few frames.
    Silence and held sounds are cycles of one frame; stuck phrases are longer ones.
    """

    def __init__(self) -> None:
        self._recent: list[int] = []  # newest last
        self._runs = [0] * LONGEST_CYCLE  # frames in a row that equal the frame n + 1 before them

    def add(self, code: int) -> int:
        """Take the next frame's code; return for how many frames the stream has repeated a cycle by now."""
        for n in range(LONGEST_CYCLE):
            repeats = n < len(self._recent) and self._recent[-1 - n] == code
            self._runs[n] = self._runs[n] + 1 if repeats else 0
        self._recent = [*self._recent[1 - LONGEST_CYCLE :], code]
        return max(self._runs)


Finish = Literal["stop", "length", "budget", "runaway", "text_timeout", "text_left", "error"]
"""Why a stream of a generator ends.

`stop`: the model said so. `length`: it has the frames that its caller wanted. `budget`: it has all frames that its text
is granted, and has missed its end. `runaway`: its text is read and it repeats itself, so it has missed its end, too.
`text_timeout`: the model said so, but its text was closed without an end. `text_left`: the model said so or has used up
its frames, and has not read all of its text. `error`: the model's values were not finite.
`stop` and `error` come without a frame, unless the head keeps the ending frame.
"""


@dataclass
class GenerationState:
    """A stream's state in the generator."""

    place: int  # the slot of its memory
    prefix: Prefix
    text: TextFeed
    sampling: npt.NDArray[np.float64]  # columns
    draws: Draws
    max_frames: int
    origin: Origin
    read: int = 0  # prompt positions prefilled
    endless: bool = False  # only `max_frames` ends it
    min_frames: int = 0  # it does not end by itself before
    pauses: Pauses | None = None
    must_read: bool = False  # an end before all text is read is `text_left`
    after_end: int = 0  # frames that are still heard after the one with which the model first ends it
    last: int | None = None  # its number of frames, once the model has said where it ends
    pause: int = 0  # silent frames at its end so far
    limit: Finish = "length"  # the finish after `max_frames`
    ending: Finish = "stop"  # the finish where the model says so
    begun: int = 0  # frames that steps were begun for
    seen: int = 0  # of them, those whose steps are over
    frames: int = 0  # made so far
    finish: Finish | None = None
    repetition: Repetition = field(default_factory=Repetition)

    @property
    def unread(self) -> int:
        return self.text.length - self.read

    @property
    def position(self) -> int:
        """Where the newest frame goes, after the prompt and the frames before."""
        return self.text.length + self.begun - 1

    @property
    def written(self) -> int:
        """Positions of the cache that are its own."""
        return max(self.read, self.position)

    @property
    def checked(self) -> bool:
        """Whether all that it has written is known to be finite."""
        return 0 < self.seen == self.begun and self.finish != "error"

    def end(self, reason: Finish) -> Finish:
        """End it for this reason; while text is unread, `text_left` replaces each reason but `length`."""
        left = self.must_read and reason != "length" and self.text.left(self.frames)
        self.finish = "text_left" if left else reason
        return self.finish

    def piece(self, count: int) -> PromptPiece:
        """The next positions of its prompt."""
        return PromptPiece(self.place, self.read, self.text.embeds[self.read : self.read + count])

    def hears(self, payload: npt.NDArray[Any]) -> bool:
        """Take the next frame, and return whether it is heard."""
        if self.pauses is None:
            return True
        self.pause = self.pause + 1 if int(payload[0]) in self.pauses.silent else 0
        return self.pause <= self.pauses.most

    def row(self) -> Row:
        """What a step needs of it."""
        number = self.begun
        may_stop, text = number >= self.min_frames and not self.endless, self.text.row(number)
        return Row(self.place, self.sampling, self.draws.of(number), may_stop, number, self.position, text)
