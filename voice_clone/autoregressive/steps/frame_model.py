"""One frame of many streams as functions of tensors, and the memory of their slots.

Nothing here reads a value on the device: what these functions do depends on shapes and on what the host knows. So they
run eagerly on rows of any slots as well as in a CUDA graph.

Shapes: B rows, W numbers of a frame, C hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.autoregressive.frame_head import FIXED, LIVE, Batch, Row, RowTable, Variant
from voice_clone.autoregressive.talker import Talker


class FrameModel:
    """A talker with preallocated memory, on the device and in the dtype of its weights.

    Attributes:
        idle_position: where rows that do not move write their keys and values: behind the last position of any stream.
        cache: of the talker's stack.
        memory: of the talker's head.
        hidden: [slots, C], the talker's state from which each slot's next frame comes.
        newest: [slots, W], each slot's newest frame. The host need not know it to have the next one made.
    """

    def __init__(self, talker: Talker[Any], slots: int, max_length: int, idle_rows: bool = False) -> None:
        """`idle_rows`: there will be rows that do not move; the cache then has a position for them."""
        self.talker = talker
        self.slots = slots
        self.idle_position = max_length
        like, head = talker.stack.like, talker.head
        self.device = like.device
        self.cache = talker.stack.new_cache(slots, max_length + idle_rows)
        self.memory = head.new_memory(slots, max_length, self.device)
        size = like.shape[-1]
        self.hidden = torch.zeros(slots, size, dtype=like.dtype, device=self.device)
        self.newest = torch.zeros(slots, head.form.width, dtype=head.dtype, device=self.device)
        self.no_text = torch.zeros(size, dtype=like.dtype, device=self.device)

    def pack(self, rows: Sequence[Row | None]) -> npt.NDArray[np.float64]:
        """The table of a step; None is a row without a stream."""
        head = self.talker.head
        return RowTable.pack(rows, head.neutral, head.draws, self.idle_position)

    def table(self, packed: Tensor) -> RowTable:
        """What was packed, on the device."""
        return RowTable(packed, self.talker.head.draws)

    def variant(self, packed: npt.NDArray[np.float64]) -> Variant:
        """What the rows with a stream need of the head."""
        live, head = packed[packed[:, LIVE] != 0], self.talker.head
        return head.variant_of(live[:, FIXED : live.shape[1] - head.draws])

    def advance(self, batch: Batch, text: Tensor, decode: Callable[[Tensor], Tensor]) -> None:
        """Read the newest frame of the rows that move, so that `hidden` and `memory` are those of the next one.

        The result depends on nothing that this changes, so it may run again.

        Args:
            text: [B, C], what is added to the frames' embeddings.
            decode: the talker's step for these rows, [B, C] -> [B, C].
        """
        slots, moves = batch.slots, batch.table.moves
        newest = self.newest[slots]
        self.talker.head.read(self.memory, batch, newest)
        hidden = decode(self.talker.embed_frames(newest) + text)
        self.hidden[slots] = torch.where(moves[:, None], hidden, self.hidden[slots])

    def make(self, batch: Batch, variant: Variant, out: Tensor) -> None:
        """Make the next frame of each row, and keep it as the newest of the rows with a stream.

        Args:
            out: [B, W + 2] of the head's dtype; gets the frames, whether each stream ended, whether all was finite.
        """
        made = self.talker.head.make(self.memory, batch.of(self.hidden), batch, variant)
        width = made.payload.shape[1]
        out[:, :width] = made.payload
        out[:, width] = made.ended
        out[:, width + 1] = made.finite
        # Last: what raised before may run again.
        self.newest[batch.slots] = torch.where(batch.table.live[:, None], made.payload, self.newest[batch.slots])

    def move(self, source: int, target: int, length: int) -> None:
        """Move the stream of a slot to a free one; `length` positions of the cache are its own. Nothing of it stays."""
        self.cache.move(source, target, length)
        for memory in (self.hidden, self.newest, *self.memory.by_slot):
            memory[target] = memory[source]
