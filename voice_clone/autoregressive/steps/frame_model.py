"""One frame of many streams as functions of tensors, and the memory of their slots.

Nothing here reads a value on the device: what these functions do depends on shapes and on what the host knows. So they
run eagerly on rows of any slots as well as in a CUDA graph.

Shapes: B rows, K codebooks, C hidden size, V vocabulary of codebook 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from voice_clone.autoregressive.sampling import Draw, Filters
from voice_clone.autoregressive.steps.rows import RowTable
from voice_clone.autoregressive.talker import Talker


class FrameModel:
    """A talker with preallocated memory, on the device and in the dtype of its weights.

    Attributes:
        idle_position: where rows that do not move write their keys and values: behind the last position of any stream.
        cache: of the talker's stack.
        frame_cache: of the code predictor; None if there is none.
        hidden: [slots, C], the talker's state from which each slot's next frame comes.
        used: bool [slots, V], the codes that each slot's stream has used, up to the frame before the newest at least.
        newest: int64 [slots, K], each slot's newest frame. The host need not know it to have the next one made.
        history: int64 [slots, R + frames], codebook 0 of the frames before the newest at least, behind R times -1; of a
            talker with R recent codes.
    """

    def __init__(self, talker: Talker[Any], slots: int, max_length: int, idle_rows: bool = False) -> None:
        """`idle_rows`: there will be rows that do not move; the cache then has a position for them."""
        self.talker = talker
        self.slots = slots
        self.idle_position = max_length
        like = talker.stack.like
        self.device = like.device
        self.cache = talker.stack.new_cache(slots, max_length + idle_rows)
        self.frame_cache = talker.new_frame_cache(slots)
        size = like.shape[-1]
        self.hidden = torch.zeros(slots, size, dtype=like.dtype, device=self.device)
        self.used = torch.zeros(slots, talker.vocabulary, dtype=torch.bool, device=self.device)
        self.newest = torch.zeros(slots, talker.codebooks, dtype=torch.int64, device=self.device)
        recent, room = talker.recent_codes, max_length + 1 if talker.recent_codes else 0
        self.history = torch.full((slots, recent + room), -1, dtype=torch.int64, device=self.device)
        self._window = torch.arange(recent, device=self.device)
        self.no_text = torch.zeros(size, dtype=like.dtype, device=self.device)

    def advance(self, slots: Tensor, table: RowTable, text: Tensor, decode: Callable[[Tensor], Tensor]) -> None:
        """Read the newest frame of the rows that move, so that `hidden` and `used` are those of the next one.

        The result depends on nothing that this changes, so it may run again.

        Args:
            slots: int64 [B], each row's slot.
            text: [B, C], what is added to the frames' embeddings.
            decode: the talker's step for these rows, [B, C] -> [B, C].
        """
        codes = self.newest[slots]
        code0 = codes[:, 0]
        self.used[slots, code0] |= table.moves
        if len(self._window):  # of a row that does not move where no frame comes
            place = torch.where(table.moves, table.frame - 1 + len(self._window), self.history.shape[1] - 1)
            self.history[slots, place] = code0
        hidden = decode(self.talker.embed_frames(codes) + text)
        self.hidden[slots] = torch.where(table.moves[:, None], hidden, self.hidden[slots])

    def first_code(
        self, slots: Tensor, hidden: Tensor, used: Tensor, table: RowTable, filters: Filters
    ) -> tuple[Tensor, Tensor]:
        """Hidden states [B, C] -> codebook 0 int64 [B], and whether all was finite, bool [B].

        Args:
            slots: int64 [B], each row's slot; `hidden` and `used` are theirs.
        """
        if len(self._window):
            table.recent = self.history[slots[:, None], table.frame[:, None] + self._window]
        return self.talker.first_code(self.talker.head(hidden), used, table, filters)

    def other_codes(self, hidden: Tensor, code0: Tensor, table: RowTable, filters: Filters) -> tuple[Tensor, Tensor]:
        """Code predictor: hidden [B, C], code 0 int64 [B] -> codes int64 [B, K], and whether all was finite, bool [B].

        The other codes of a row that stops with code 0 are not used: such a row counts as finite.
        """
        draw = Draw(table.others, filters, table.uniform)
        codes = self.talker.complete(self.frame_cache, hidden, code0, draw)
        return codes, draw.finite | (code0 == self.talker.end_code)

    def keep(self, slots: Tensor, table: RowTable, codes: Tensor) -> None:
        """What was made, int64 [B, K], is the newest frame of the rows with a stream. The last act of a step: what
        raised before may run again.
        """
        self.newest[slots] = torch.where(table.live[:, None], codes, self.newest[slots])

    def move(self, source: int, target: int, length: int) -> None:
        """Move the stream of a slot to a free one; `length` positions of the cache are its own. Nothing of it stays."""
        self.cache.move(source, target, length)
        for memory in (self.hidden, self.used, self.newest, self.history):
            memory[target] = memory[source]
