"""A frame head makes the next frames from a talker's hidden states: codes, or numbers of any other kind.

It reads the streams of a step as rows of one table, so that host to device is one transfer. All numbers of a step are
tensors, or all are numpy's arrays: those that the talker computes in.

Shapes: B rows, C hidden size, W numbers of a frame, S sampling columns, D random numbers of a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers, cast
from voice_clone.autoregressive.philox import Draws, NormalDraws
from voice_clone.batching.source import PayloadForm

LIVE, FRAME, POSITION, MAY_STOP = range(4)
FIXED = 4  # columns of every head; those of its sampling follow, then the draws


class Row(NamedTuple):
    """What a step needs of one stream.

    Attributes:
        slot: of its memory.
        sampling: fp64 [S], as of `FrameHead.columns`.
        draws: fp64 [D], the random numbers of its next frame.
        may_stop: whether that frame may be the end of speech.
        frame: its number; 0: there is no newest frame yet, which the talker would read.
        position: where the newest frame goes.
        text: the text embedding that goes with the newest frame, of the stack's input size.
    """

    slot: int
    sampling: npt.NDArray[np.float64]
    draws: npt.NDArray[np.float64]
    may_stop: bool
    frame: int
    position: int
    text: Numbers


class RowTable:
    """B rows as one fp64 table, so that host to device is one transfer. fp64 holds each of the numbers exactly.

    Attributes:
        live: bool [B], whether there is a stream.
        frame: int64 [B], the number of the frame that is made.
        moves: bool [B], whether a row has a newest frame that the talker must read.
        position: int64 [B], where it goes.
        may_stop: bool [B].
        sampling: fp32 [B, S].
        draws: fp64 [B, D].
    """

    def __init__(self, table: Numbers, draws: int) -> None:
        """`table` is the result of `pack`, on the device, with so many draws."""
        self._table = table
        self._first_draw = table.shape[1] - draws
        self.draws = table[:, self._first_draw :]

    @property
    def live(self) -> Numbers:
        return self._flags[:, LIVE]

    @property
    def frame(self) -> Numbers:
        return self._whole[:, FRAME]

    @property
    def moves(self) -> Numbers:
        return self._flags[:, FRAME]

    @property
    def position(self) -> Numbers:
        return self._whole[:, POSITION]

    @property
    def may_stop(self) -> Numbers:
        return self._flags[:, MAY_STOP]

    # Each of these conversions is one kernel, in the steps that need it.
    @cached_property
    def sampling(self) -> Numbers:
        return cast(self._table[:, FIXED : self._first_draw], np.float32)

    @cached_property
    def _flags(self) -> Numbers:
        return self._table[:, :FIXED] != 0

    @cached_property
    def _whole(self) -> Numbers:
        return cast(self._table[:, :FIXED], np.int64)

    def at(self, places: Numbers) -> RowTable:
        """Some of the rows; `places` is int64."""
        return RowTable(self._table[places], self.draws.shape[1])

    @staticmethod
    def pack(
        rows: Sequence[Row | None], neutral: npt.NDArray[np.float64], draws: int, idle_position: int
    ) -> npt.NDArray[np.float64]:
        """[B, FIXED + S + D]; None is a row without a stream, with `neutral` [S] as its sampling columns.

        Rows that do not move write at `idle_position`.
        """
        table = np.zeros((len(rows), FIXED + len(neutral) + draws))
        table[:, POSITION] = idle_position
        first_draw = FIXED + len(neutral)
        table[:, FIXED:first_draw] = neutral
        for line, row in zip(table, rows, strict=True):
            if row is None:
                continue
            position = row.position if row.frame else idle_position
            line[:FIXED] = 1.0, row.frame, position, row.may_stop
            line[FIXED:first_draw] = row.sampling
            line[first_draw:] = row.draws
        return table


class Batch(NamedTuple):
    """The streams of a step.

    Attributes:
        slots: int64 [B], each row's slot.
        table: what the step knows of each row.
        fixed: the rows are the first B slots in their order, and what is computed must not depend on any value.
    """

    slots: Numbers
    table: RowTable
    fixed: bool

    def of(self, memory: Numbers) -> Numbers:
        """Memory of all slots [slots, ...] -> that of these rows [B, ...]; a view where the rows are fixed."""
        return memory[: len(self.slots)] if self.fixed else memory[self.slots]


class MadeFrames(NamedTuple):
    """What a head made of B rows.

    Attributes:
        payload: [B, W], of the head's dtype.
        ended: bool [B], whether the model ends the stream with this frame.
        finite: bool [B], whether all values of a row were finite. Otherwise its payload means nothing.
    """

    payload: Numbers
    ended: Numbers
    finite: Numbers


class Variant(Protocol):
    """What rows need of a head. Steps of fixed shapes are recorded once for each variant of the head's list."""

    def covers(self, other: Any) -> bool:
        """Whether this serves every row that `other` serves."""


class HeadMemory(Protocol):
    """What a head keeps of the streams in all slots."""

    @property
    def by_slot(self) -> Sequence[Numbers]:
        """[slots, ...] each; a row moves with its stream."""

    @property
    def nbytes(self) -> int:
        """Bytes of key-value memory among it."""


M = TypeVar("M", bound=HeadMemory)


class FrameHead(Protocol[M]):
    """Makes frames of hidden states. It keeps no state of streams; `new_memory` does.

    Nothing here reads a value on a GPU, so that CUDA graphs can hold `read` and `make`.
    """

    @property
    def form(self) -> PayloadForm:
        """W, and the dtype in which the host gets frames."""

    @property
    def dtype(self) -> npt.DTypeLike:
        """In which frames stay on the device; it must hold 0 and 1."""

    @property
    def draws(self) -> int:
        """D."""

    @property
    def neutral(self) -> npt.NDArray[np.float64]:
        """fp64 [S], the sampling columns of a row without a stream."""

    @property
    def variants(self) -> Sequence[Variant]:
        """A step takes the first one that covers all its rows; the last one covers any."""

    @property
    def keeps_ending_frame(self) -> bool:
        """Whether the frame with which a stream ends is heard."""

    def columns(self, sampling: Any) -> npt.NDArray[np.float64]:
        """How a stream's frames are drawn, the same for all of them: fp64 [S]."""

    def new_draws(self, seed: int) -> Draws:
        """The random numbers of a stream."""

    def variant_of(self, columns: npt.NDArray[np.float64]) -> Variant:
        """What rows with these sampling columns [B, S] need; each of them has a stream."""

    def new_memory(self, slots: int, max_length: int, like: Numbers) -> M:
        """Memory of so many slots, for streams of at most `max_length` positions, where `like` is and of its kind."""

    def clear(self, memory: M, slot: int) -> None:
        """A new stream begins in a slot."""

    def read(self, memory: M, batch: Batch, payload: Numbers) -> None:
        """The talker reads the newest frames [B, W] of the rows that move. May run twice with the same arguments."""

    def make(self, memory: M, hidden: Numbers, batch: Batch, variant: Any) -> MadeFrames:
        """The next frame of each row; hidden states [B, C]. Changes nothing that it depends on, so it may run again."""


class Steps(NamedTuple):
    """A `Variant` of heads that make a frame in steps: rows of at most so many."""

    most: int

    def covers(self, other: Steps) -> bool:
        """Whether the rows of `other` have no more steps."""
        return self.most >= other.most


class NoMemory:
    """The memory of a head that keeps nothing of a stream."""

    by_slot: tuple[Numbers, ...] = ()
    nbytes = 0


class NoiseHead:
    """A `FrameHead` that makes a frame from noise, and sees earlier frames only through the hidden states."""

    draws: int

    def new_draws(self, seed: int) -> NormalDraws:
        return NormalDraws(seed, self.draws)

    def new_memory(self, slots: int, max_length: int, like: Numbers) -> NoMemory:
        return NoMemory()

    def clear(self, memory: NoMemory, slot: int) -> None:
        """As of `FrameHead`."""

    def read(self, memory: NoMemory, batch: Batch, payload: Numbers) -> None:
        """As of `FrameHead`."""
