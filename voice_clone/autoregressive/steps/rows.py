"""The streams of a step as rows of one table; the pieces of prompts that are read together.

Shapes: B rows, K codebooks, R recent codes, D draws a frame, C hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from torch import Tensor

from voice_clone.autoregressive.sampling import Filters, Sampling

Codes = npt.NDArray[np.int32]
Made = tuple[Codes, npt.NDArray[np.bool_]]
"""Codes int32 [B, K], and whether each row's values were finite, bool [B]."""
Wait = Callable[[], Made]
"""Waits for a step that was begun."""

KNOBS = 4
LIVE, FRAME, POSITION, MAY_STOP, PENALTY, FIRST_KNOBS, OTHER_KNOBS = 0, 1, 2, 3, 4, 5, 5 + KNOBS
HEAD = OTHER_KNOBS + KNOBS  # columns before the draws


@dataclass(frozen=True, eq=False)
class Row:
    """What a step needs of one stream.

    Attributes:
        slot: of its memory.
        knobs: fp64 [9], see `knobs_of`.
        uniform: fp64 [D], the draws of its next frame.
        may_stop: whether that frame may be the end of speech.
        frame: its number; 0: there is no newest frame yet, which the talker would read.
        position: where the newest frame goes.
        text: [C], the text embedding that goes with the newest frame.
    """

    slot: int
    knobs: npt.NDArray[np.float64]
    uniform: npt.NDArray[np.float64]
    may_stop: bool
    frame: int
    position: int
    text: Tensor


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive positions of the prompt of one stream.

    Attributes:
        slot: of its memory.
        start: the first position.
        embeds: [n, C].
    """

    slot: int
    start: int
    embeds: Tensor

    @property
    def end(self) -> int:
        """Behind the last position."""
        return self.start + len(self.embeds)

    def cut(self, count: int) -> tuple[Piece, Piece]:
        """The first `count` positions, and the others."""
        first, rest = self.embeds[:count], self.embeds[count:]
        return Piece(self.slot, self.start, first), Piece(self.slot, self.start + len(first), rest)


def knobs_of(sampling: Sampling) -> npt.NDArray[np.float64]:
    """What stays the same in all rows of a stream: fp64 [9], its penalty and the knobs of its two samplers."""
    return np.array([sampling.repetition_penalty, *sampling.first, *sampling.others])


class RowTable:
    """B rows as one fp64 table, so that host to device is one transfer. fp64 holds each of the numbers exactly.

    Attributes:
        live: bool [B], whether there is a stream.
        frame: int64 [B], the number of the frame that is made.
        moves: bool [B], whether a row has a newest frame that the talker must read.
        position: int64 [B], where it goes.
        uniform: fp64 [B, D], the draws; D >= K.
        penalty: fp32 [B, 1].
        may_stop: bool [B].
        first, others: fp32 [B, 4], the knobs of the sampler of codebook 0 and of those of the others.
        recent: int64 [B, R], codebook 0 of the latest frames, the newest one last; -1 where there was none yet. Of a
            talker with recent codes, once `FrameModel.first_code` has set it.
    """

    recent: Tensor

    def __init__(self, table: Tensor) -> None:
        """`table` is the result of `pack`, on the device."""
        self._table = table
        self.uniform = table[:, HEAD:]

    @property
    def live(self) -> Tensor:
        return self._flags[:, LIVE]

    @property
    def frame(self) -> Tensor:
        return self._whole[:, FRAME]

    @property
    def moves(self) -> Tensor:
        return self._flags[:, FRAME]

    @property
    def position(self) -> Tensor:
        return self._whole[:, POSITION]

    @property
    def penalty(self) -> Tensor:
        return self._numbers[:, :1]

    @property
    def may_stop(self) -> Tensor:
        return self._flags[:, MAY_STOP]

    @property
    def first(self) -> Tensor:
        return self._numbers[:, FIRST_KNOBS - PENALTY : OTHER_KNOBS - PENALTY]

    @property
    def others(self) -> Tensor:
        return self._numbers[:, OTHER_KNOBS - PENALTY :]

    # Each of these conversions is one kernel, in the steps that need it.
    @cached_property
    def _flags(self) -> Tensor:
        return self._table[:, :PENALTY] != 0

    @cached_property
    def _whole(self) -> Tensor:
        return self._table[:, :PENALTY].long()

    @cached_property
    def _numbers(self) -> Tensor:
        return self._table[:, PENALTY:HEAD].float()

    def at(self, places: Tensor) -> RowTable:
        """Some of the rows; `places` is int64."""
        return RowTable(self._table[places])

    @staticmethod
    def pack(rows: Sequence[Row | None], draws: int, idle_position: int) -> npt.NDArray[np.float64]:
        """[B, HEAD + D]; None is a row without a stream. Rows that do not move write at `idle_position`."""
        table = np.zeros((len(rows), HEAD + draws))
        table[:, POSITION] = idle_position
        table[:, [PENALTY, FIRST_KNOBS + 1, OTHER_KNOBS + 1]] = 1.0  # and temperatures
        for line, row in zip(table, rows, strict=True):
            if row is None:
                continue
            position = row.position if row.frame else idle_position
            line[:PENALTY] = 1.0, row.frame, position, row.may_stop
            line[PENALTY:HEAD] = row.knobs
            line[HEAD:] = row.uniform
        return table

    @staticmethod
    def filters(table: npt.NDArray[np.float64]) -> tuple[Filters, Filters]:
        """What the samplers of codebook 0 and of the others need for the rows with a stream."""
        table = table[table[:, LIVE] != 0]
        return Filters.of(table[:, FIRST_KNOBS:OTHER_KNOBS]), Filters.of(table[:, OTHER_KNOBS:HEAD])
