"""The streams of a step as rows of one table.

Shapes: B rows, K codebooks, R recent codes, D draws a frame, C hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from voice_clone.autoregressive.sampling import Filters, Sampling

Codes = npt.NDArray[np.int32]
Made = tuple[Codes, npt.NDArray[np.bool_]]
"""Codes int32 [B, K], and whether each row's values were finite, bool [B]."""

KNOBS = 4
MOVES, POSITION, MAY_STOP, PENALTY, FIRST_KNOBS, OTHER_KNOBS = 0, 1, 2, 3, 4, 4 + KNOBS
HEAD = OTHER_KNOBS + KNOBS  # columns before the codes


@dataclass(frozen=True, eq=False)
class Row:
    """What a step needs of one stream.

    Attributes:
        slot: of its memory.
        knobs: fp64 [9], see `knobs_of`.
        uniform: fp64 [D], the draws of its next frame.
        may_stop: whether that frame may be the end of speech.
        codes: int32 [K], the newest frame; None if there is none yet.
        position: where the newest frame goes.
        text: [C], the text embedding that goes with the newest frame.
        recent: codebook 0 of the latest frames, at most R, the newest one last.
    """

    slot: int
    knobs: npt.NDArray[np.float64]
    uniform: npt.NDArray[np.float64]
    may_stop: bool
    codes: Codes | None
    position: int
    text: Tensor
    recent: Sequence[int] = field(default=())


def knobs_of(sampling: Sampling) -> npt.NDArray[np.float64]:
    """What stays the same in all rows of a stream: fp64 [9], its penalty and the knobs of its two samplers."""
    return np.array([sampling.repetition_penalty, *sampling.first, *sampling.others])


class RowTable:
    """B rows as one fp64 table, so that host to device is one transfer. fp64 holds each of the numbers exactly.

    Attributes:
        moves: bool [B], whether a row has a newest frame that the talker must read.
        position: int64 [B].
        codes: int64 [B, K], of the newest frame.
        recent: int64 [B, R], codebook 0 of the latest frames, the newest one last; -1 where there was none yet.
        uniform: fp64 [B, D], the draws; D >= K.
        penalty: fp32 [B, 1].
        may_stop: bool [B].
        first, others: fp32 [B, 4], the knobs of the sampler of codebook 0 and of those of the others.
    """

    def __init__(self, table: Tensor, codebooks: int, recent: int = 0) -> None:
        """`table` is the result of `pack`, on the device; `recent` is R."""
        self._table = table
        self._codebooks, self._recent = codebooks, recent
        behind = HEAD + codebooks
        self.moves = table[:, MOVES] != 0
        self.position = table[:, POSITION].long()
        self.codes = table[:, HEAD:behind].long()
        self.recent = table[:, behind : behind + recent].long()
        self.uniform = table[:, behind + recent :]
        self.penalty = table[:, PENALTY : PENALTY + 1].float()
        self.may_stop = table[:, MAY_STOP] != 0
        self.first = table[:, FIRST_KNOBS:OTHER_KNOBS].float()
        self.others = table[:, OTHER_KNOBS:HEAD].float()

    def at(self, places: Tensor) -> RowTable:
        """Some of the rows; `places` is int64."""
        return RowTable(self._table[places], self._codebooks, self._recent)

    @staticmethod
    def width(codebooks: int, draws: int, recent: int = 0) -> int:
        """Columns of the table."""
        return HEAD + codebooks + recent + draws

    @staticmethod
    def pack(
        rows: Sequence[Row | None], codebooks: int, draws: int, idle_position: int, recent: int = 0
    ) -> npt.NDArray[np.float64]:
        """[B, width]; None is a row without a stream. Rows that do not move write at `idle_position`."""
        table = np.zeros((len(rows), RowTable.width(codebooks, draws, recent)))
        table[:, POSITION] = idle_position
        behind = HEAD + codebooks + recent
        table[:, HEAD + codebooks : behind] = -1
        table[:, [PENALTY, FIRST_KNOBS + 1, OTHER_KNOBS + 1]] = 1.0  # and temperatures
        for line, row in zip(table, rows, strict=True):
            if row is None:
                continue
            line[MAY_STOP] = row.may_stop
            line[PENALTY:HEAD] = row.knobs
            line[behind:] = row.uniform
            line[behind - len(row.recent) : behind] = row.recent
            if row.codes is not None:
                line[MOVES], line[POSITION] = 1.0, row.position
                line[HEAD : HEAD + codebooks] = row.codes
        return table

    @staticmethod
    def filters(table: npt.NDArray[np.float64]) -> tuple[Filters, Filters]:
        """What the samplers of codebook 0 and of the others need for these rows."""
        return Filters.of(table[:, FIRST_KNOBS:OTHER_KNOBS]), Filters.of(table[:, OTHER_KNOBS:HEAD])
