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

from voice_clone.autoregressive.rows import RowTable
from voice_clone.autoregressive.sampling import Draw, Filters
from voice_clone.autoregressive.talker import Talker


class FrameModel:
    """A talker with preallocated memory, on the device and in the dtype of its weights.

    Attributes:
        idle_position: where rows that do not move write their keys and values: behind the last position of any stream.
        cache: of the talker's stack.
        frame_cache: of the code predictor; None if there is none.
        hidden: [slots, C], the talker's state from which each slot's next frame comes.
        used: bool [slots, V], the codes that each slot's stream has used, up to the frame before the newest at least.
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
        self.no_text = torch.zeros(size, dtype=like.dtype, device=self.device)

    def advance(self, slots: Tensor, table: RowTable, text: Tensor, decode: Callable[[Tensor], Tensor]) -> None:
        """Read the newest frame of the rows that move, so that `hidden` and `used` are those of the next one.

        The result depends on nothing that this changes, so it may run again.

        Args:
            slots: int64 [B], each row's slot.
            text: [B, C], what is added to the frames' embeddings.
            decode: the talker's step for these rows, [B, C] -> [B, C].
        """
        code0 = table.codes[:, 0]
        self.used[slots, code0] |= table.moves
        hidden = decode(self.talker.embed_frames(table.codes) + text)
        self.hidden[slots] = torch.where(table.moves[:, None], hidden, self.hidden[slots])

    def first_code(self, hidden: Tensor, used: Tensor, table: RowTable, filters: Filters) -> tuple[Tensor, Tensor]:
        """Hidden states [B, C] -> codebook 0 int64 [B], and whether all was finite, bool [B]."""
        return self.talker.first_code(self.talker.head(hidden), used, table, filters)

    def other_codes(self, hidden: Tensor, code0: Tensor, table: RowTable, filters: Filters) -> tuple[Tensor, Tensor]:
        """Code predictor: hidden [B, C], code 0 int64 [B] -> codes int64 [B, K], and whether all was finite, bool [B].

        The other codes of a row that stops with code 0 are not used: such a row counts as finite.
        """
        draw = Draw(table.others, filters, table.uniform)
        codes = self.talker.complete(self.frame_cache, hidden, code0, draw)
        return codes, draw.finite | (code0 == self.talker.end_code)
