"""A frame head: from a talker's hidden states to the next frames. Codes, or numbers of any other kind.

Shapes: B rows, C hidden size, W numbers of a frame, S sampling columns, D random numbers of a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.autoregressive.philox import Draws
from voice_clone.autoregressive.steps.rows import RowTable
from voice_clone.batching.source import PayloadForm


@dataclass(frozen=True, eq=False)
class Batch:
    """The streams of a step.

    Attributes:
        slots: int64 [B], each row's slot.
        table: what the step knows of each row.
        fixed: the rows are the first B slots in their order, and what is computed must not depend on any value.
    """

    slots: Tensor
    table: RowTable
    fixed: bool

    def of(self, memory: Tensor) -> Tensor:
        """Memory of all slots [slots, ...] -> that of these rows [B, ...]; a view where the rows are fixed."""
        return memory[: len(self.slots)] if self.fixed else memory[self.slots]


@dataclass(frozen=True, eq=False)
class MadeFrames:
    """What a head made of B rows.

    Attributes:
        payload: [B, W], of the head's dtype.
        ended: bool [B], whether the model ends the stream with this frame.
        finite: bool [B], whether all of a row's values were. The payload of a row that was not means nothing.
    """

    payload: Tensor
    ended: Tensor
    finite: Tensor


class Variant(Protocol):
    """What rows need of a head. Steps of fixed shapes are recorded once for each variant of the head's list."""

    def covers(self, other: Any) -> bool:
        """Whether this does for all rows that `other` does for."""


class HeadMemory(Protocol):
    """What a head keeps of the streams in all slots."""

    @property
    def by_slot(self) -> Sequence[Tensor]:
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
    def dtype(self) -> torch.dtype:
        """In which frames stay on the device; it must hold 0 and 1."""

    @property
    def draws(self) -> int:
        """D."""

    @property
    def neutral(self) -> npt.NDArray[np.float64]:
        """fp64 [S], the sampling columns of a row without a stream."""

    @property
    def variants(self) -> Sequence[Variant]:
        """For each row one covers it; a step takes the first that covers all its rows. The last one covers all."""

    @property
    def keeps_ending_frame(self) -> bool:
        """Whether the frame with which a stream ends is heard."""

    def columns(self, sampling: Any) -> npt.NDArray[np.float64]:
        """How a stream's frames are drawn, the same for all of them: fp64 [S]."""

    def new_draws(self, seed: int) -> Draws:
        """The random numbers of a stream."""

    def variant_of(self, columns: npt.NDArray[np.float64]) -> Variant:
        """Exactly what rows of these sampling columns [B, S] need, all of them of streams."""

    def new_memory(self, slots: int, max_length: int, device: torch.device) -> M:
        """Memory of so many slots, for streams of at most `max_length` positions."""

    def clear(self, memory: M, slot: int) -> None:
        """A new stream begins in a slot."""

    def read(self, memory: M, batch: Batch, payload: Tensor) -> None:
        """The talker reads the newest frames [B, W] of the rows that move. May run twice with the same arguments."""

    def make(self, memory: M, hidden: Tensor, batch: Batch, variant: Any) -> MadeFrames:
        """The next frame of each row; hidden states [B, C]. Changes nothing that it depends on, so it may run again."""
