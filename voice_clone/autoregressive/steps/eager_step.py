"""A step whose shapes follow the live streams, so that no idle slot is computed. Used on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from voice_clone.autoregressive.sampling import Filters
from voice_clone.autoregressive.steps.frame_model import FrameModel
from voice_clone.autoregressive.steps.rows import Piece, Row, RowTable, Wait


class EagerStep:
    """Makes the next frame of any rows.

    Args:
        deterministic: always compute all slots, occupied or not, and let each row attend by itself, so that no
            neighbour changes a bit.
    """

    def __init__(self, model: FrameModel, deterministic: bool) -> None:
        self._model = model
        self._deterministic = deterministic

    @property
    def prompts_at_once(self) -> int:
        """Any number: each is read by itself, and only the positions take time."""
        return self._model.slots

    def read(self, pieces: Sequence[Piece]) -> None:
        """Read pieces of the prompts of different slots, each by itself. If this raises, it may be tried again."""
        model = self._model
        for piece in pieces:
            model.hidden[piece.slot] = model.talker.stack.prefill(model.cache, piece.slot, piece.embeds, piece.start)

    def begin(self, rows: Sequence[Row]) -> Wait:
        """Of rows of different slots, in their order. If this raises, it may be tried again."""
        batch: list[Row | None] = [*sorted(rows, key=lambda row: row.slot)]
        if self._deterministic:
            by_slot = {row.slot: row for row in rows}
            batch = [by_slot.get(slot) for slot in range(self._model.slots)]
        slots = [row.slot if row else place for place, row in enumerate(batch)]
        talker = self._model.talker
        table = RowTable.pack(batch, talker.draws, self._model.idle_position)
        filters = RowTable.filters(table)
        on_device = RowTable(torch.from_numpy(table).to(self._model.device))
        self._advance(batch, slots, on_device)
        result = self._sample(torch.tensor(slots, device=self._model.device), on_device, filters)
        order = [slots.index(row.slot) for row in rows]
        made = result.cpu().numpy()[order]  # the one wait of a step
        codes, finite = made[:, :-1].astype(np.int32), made[:, -1] != 0
        return lambda: (codes, finite)

    def _advance(self, batch: Sequence[Row | None], slots: Sequence[int], table: RowTable) -> None:
        """Read the newest frames, of the rows that have one."""
        model = self._model
        places = [place for place, row in enumerate(batch) if row and row.frame]
        if not places:
            return
        if not self._deterministic and len(places) < len(batch):
            table = table.at(torch.tensor(places, device=model.device))
            batch, slots = [batch[place] for place in places], [slots[place] for place in places]
        positions, seen, texts = [], [], []
        for row in batch:
            moving = row if row and row.frame else None
            # A row that does not move writes behind all positions and sees one position of any content.
            positions.append(moving.position if moving else model.idle_position)
            seen.append(moving.position + 1 if moving else 1)
            texts.append(moving.text if moving else model.no_text)
        alone = seen if self._deterministic else None
        model.advance(
            torch.tensor(slots, device=model.device),
            table,
            torch.stack(texts),
            lambda embeds: model.talker.stack.decode(model.cache, slots, positions, embeds, alone),
        )

    def _sample(self, slots: Tensor, table: RowTable, filters: tuple[Filters, Filters]) -> Tensor:
        """int64 [B, K + 1]: the codes, then whether all was finite."""
        model, hidden = self._model, self._model.hidden[slots]
        code0, finite = model.first_code(slots, hidden, model.used[slots], table, filters[0])
        going = self._going(code0)
        if len(going) == len(code0):
            codes, fine = model.other_codes(hidden, code0, table, filters[1])
            finite = finite & fine
        else:
            codes = torch.zeros_like(model.newest[: len(code0)])
            codes[:, 0] = code0
            if going:
                some = torch.tensor(going)
                codes[some], fine = model.other_codes(hidden[some], code0[some], table.at(some), filters[1])
                finite[some] &= fine
        model.keep(slots, table, codes)
        return torch.cat([codes, finite[:, None]], dim=1)

    def _going(self, code0: Tensor) -> list[int]:
        """The rows that the code predictor completes.

        On a CPU the rows that have not just stopped. On a GPU all, because the host would have to wait for the codes.
        In a deterministic step all, because the shape must not change.
        """
        if self._deterministic or code0.device.type != "cpu":
            return list(range(code0.shape[0]))
        eos = self._model.talker.end_code
        return [place for place, code in enumerate(code0.tolist()) if code != eos]
