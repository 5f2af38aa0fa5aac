"""What a talker of any family is: a decoder stack and a frame head.

A frame: the head makes it of the stack's hidden state; the frame's embedding plus a text embedding is the stack's next
input.

Shapes: N frames, W numbers of a frame, I input size of the stack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers, joined, namespace
from voice_clone.autoregressive.frame_head import FrameHead
from voice_clone.autoregressive.stack.protocol import Stack
from voice_clone.lru_cache import Origin

P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)


class Seeded(Protocol):
    """How a stream's frames are drawn: a seed, and what the talker's head knows besides."""

    @property
    def seed(self) -> int:
        """64 bits; with the prompt it determines all draws."""


class Pauses(NamedTuple):
    """How long a pause is heard: of silent frames in a row the first ones alone. The talker reads all of them.

    Attributes:
        silent: what codebook 0 has in a silent frame.
        most: frames of a pause that are heard.
    """

    silent: frozenset[int]
    most: int


@dataclass(frozen=True, eq=False)
class TalkerRequest(Generic[P]):
    """One stream: what the generator starts it with.

    Attributes:
        prompt: the family's.
        sampling: how its frames are drawn, as the talker's head reads it.
        max_frames: the stream ends after so many frames, those of pauses that are not heard among them.
        budgeted: they are what the family grants the text. A stream that uses them up has missed its end; one that
            has all frames that its caller asked for has not.
        origin: the voice of the prompt.
        endless: neither the model's end nor a repetition ends it before max_frames: for warm-ups and measurements.
        min_frames: it cannot end by itself before so many frames, nor before the talker's `min_frames`.
        pauses: how long they are heard, of a talker of codes; None: all frames are.
        must_read: an end before all text is read is `text_left`, whatever its reason but `length`.
        frames_after_end: frames that are heard from the one on with which the model first says that speech ends; None:
            the head's `keeps_ending_frame` says whether that one is.
    """

    prompt: P
    sampling: Seeded
    max_frames: int
    budgeted: bool = False
    origin: Origin = field(default_factory=Origin.unknown)
    endless: bool = False
    min_frames: int = 0
    pauses: Pauses | None = None
    must_read: bool = False
    frames_after_end: int | None = None


class MoreText(NamedTuple):
    """What follows the text of a stream whose text is open.

    Attributes:
        ids: int32 [n], its tokens.
        last: whether it is the end of the text.
        max_frames, budgeted: of the whole text so far, as of `TalkerRequest`.
        cut: the text was closed without its end; the stream's finish is then `text_timeout` where it would be `stop`.
    """

    ids: npt.NDArray[np.int32]
    last: bool
    max_frames: int
    budgeted: bool
    cut: bool = False


class TalkerInput(NamedTuple):
    """What the talker reads. T prefill positions, M of which wait for text, R frames that still bring text.

    Attributes:
        embeds: [T - M, I].
        trailing_text: [R, I]; row i is added to frame i's embedding.
        pad: [I]; added to the frames after those.
        below: [M, I]; to each of its rows the next row of text is added, or `pad` if the text has ended. None: M is 0.
        end: [I], the row behind an open text's last one. None: the text is complete.
    """

    embeds: Numbers
    trailing_text: Numbers
    pad: Numbers
    below: Numbers | None = None
    end: Numbers | None = None


class TextFeed:
    """A stream's prompt and text, which may still grow.

    Args:
        given: what is known at the start.

    Attributes:
        embeds: [n, I], the first positions of the prompt: those whose text is known.
        length: all its positions.
    """

    def __init__(self, given: TalkerInput) -> None:
        self.embeds = given.embeds
        self._below = given.embeds[:0] if given.below is None else given.below
        self.length = len(self.embeds) + len(self._below)
        self._trailing, self._pad, self._end = given.trailing_text, given.pad, given.end
        self._passed = 0  # rows that were read and dropped

    @property
    def open(self) -> bool:
        """Whether text may follow."""
        return self._end is not None

    def covers(self, frames: int) -> bool:
        """Whether the text for the newest of so many frames has come."""
        return not self.open or frames - 1 < self._passed + len(self._trailing)

    def ended(self, frames: int) -> bool:
        """Whether the talker has read all text by then."""
        return not self.open and frames > self._passed + len(self._trailing)

    def left(self, frames: int) -> bool:
        """Whether a talker that ends with so many frames has not read all text."""
        return self.open or frames < self._passed + len(self._trailing)

    def row(self, frames: int) -> Numbers:
        """[I], what is added to the newest of so many frames."""
        index = frames - 1 - self._passed
        return self._trailing[index] if 0 <= index < len(self._trailing) else self._pad

    def extend(self, rows: Numbers, last: bool, frames: int) -> None:
        """More text, [n, I], comes while the stream has so many frames; `last` closes the text."""
        if self._end is None:
            raise ValueError("the text of this stream is complete")
        if last:
            missing = max(0, len(self._below) - len(rows) - 1)
            pads = namespace(rows).broadcast_to(self._pad, (missing, len(self._pad)))
            rows = joined([rows, self._end[None], pads])
            self._end = None
        filled = min(len(rows), len(self._below))
        self.embeds = joined([self.embeds, rows[:filled] + self._below[:filled]])
        self._below = self._below[filled:]
        read = min(max(0, frames - 1 - self._passed), len(self._trailing))
        self._trailing = joined([self._trailing[read:], rows[filled:]])
        self._passed += read


class Prefix(NamedTuple):
    """The beginning of a prompt that depends on the voice alone.

    Attributes:
        key: digest of all that it is computed from.
        length: positions, less than the prompt's: its last position is read in any case. 0: there is none.
    """

    key: bytes
    length: int


class TextReader(Protocol):
    """A talker whose text may follow while it speaks: one whose prompts can have an `end`."""

    def embed_text(self, ids: npt.NDArray[np.integer[Any]]) -> Numbers:
        """Text tokens [N], of any integer type -> [N, I]. A row does not depend on the others beside it."""


class Talker(Protocol[P_contra]):
    """A family's talker: a decoder stack and a frame head. It keeps no state of streams."""

    @property
    def stack(self) -> Stack:
        """The decoder stack."""

    @property
    def head(self) -> FrameHead[Any]:
        """Makes frames of the stack's hidden states."""

    @property
    def min_frames(self) -> int:
        """A stream cannot end by itself before so many frames."""

    def check(self, prompt: P_contra) -> None:
        """Check a prompt against the checkpoint.

        Raises:
            InvalidArgument: it does not suit.
        """

    def prompt_length(self, prompt: P_contra) -> int:
        """T, the positions of `prompt`."""

    def prefix(self, prompt: P_contra) -> Prefix:
        """What `prompt` shares with all others in its voice."""

    def embed_prompt(self, prompt: P_contra) -> TalkerInput:
        """Embed a prompt that `check` has passed."""

    def embed_frames(self, payload: Numbers) -> Numbers:
        """Frames [N, W] as the head made them -> [N, I]."""
