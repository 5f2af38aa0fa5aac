"""The streams of a step as rows of one table; the pieces of prompts that are read together.

Shapes: B rows, W numbers of a frame, S sampling columns, D draws a frame, C hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Made:
    """What a step made, on the host.

    Attributes:
        payload: [B, W], of the dtype of the head's form.
        ended, finite: bool [B], as of `MadeFrames`.
    """

    payload: npt.NDArray[Any]
    ended: npt.NDArray[np.bool_]
    finite: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, rows: npt.NDArray[Any], dtype: npt.DTypeLike) -> Made:
        """`rows` [B, W + 2]: payload, whether it ended, whether it was finite."""
        return cls(rows[:, :-2].astype(dtype), rows[:, -2] != 0, rows[:, -1] != 0)


Wait = Callable[[], Made]
"""Waits for a step that was begun."""

LIVE, FRAME, POSITION, MAY_STOP = range(4)
FIXED = 4  # columns of every head; those of its sampling follow, then the draws


@dataclass(frozen=True, eq=False)
class Row:
    """What a step needs of one stream.

    Attributes:
        slot: of its memory.
        sampling: fp64 [S], as of `FrameHead.columns`.
        draws: fp64 [D], the random numbers of its next frame.
        may_stop: whether that frame may be the end of speech.
        frame: its number; 0: there is no newest frame yet, which the talker would read.
        position: where the newest frame goes.
        text: [C], the text embedding that goes with the newest frame.
    """

    slot: int
    sampling: npt.NDArray[np.float64]
    draws: npt.NDArray[np.float64]
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

    def __init__(self, table: Tensor, draws: int) -> None:
        """`table` is the result of `pack`, on the device, with so many draws."""
        self._table = table
        self._first_draw = table.shape[1] - draws
        self.draws = table[:, self._first_draw :]

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
    def may_stop(self) -> Tensor:
        return self._flags[:, MAY_STOP]

    # Each of these conversions is one kernel, in the steps that need it.
    @cached_property
    def sampling(self) -> Tensor:
        return self._table[:, FIXED : self._first_draw].float()

    @cached_property
    def _flags(self) -> Tensor:
        return self._table[:, :FIXED] != 0

    @cached_property
    def _whole(self) -> Tensor:
        return self._table[:, :FIXED].long()

    def at(self, places: Tensor) -> RowTable:
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
