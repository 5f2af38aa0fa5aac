"""A step whose shapes follow the live streams, so that no idle slot is computed. Used on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from voice_clone.autoregressive.frame_head import Batch, Made, Piece, Row, RowTable, Wait
from voice_clone.autoregressive.steps.frame_model import FrameModel


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
        model = self._model
        packed = model.pack(batch)
        table = model.table(torch.from_numpy(packed).to(model.device))
        self._advance(batch, slots, table)
        head = model.talker.head
        out = torch.empty(len(slots), head.form.width + 2, dtype=head.dtype, device=model.device)
        made = Batch(torch.tensor(slots, device=model.device), table, fixed=self._deterministic)
        model.make(made, model.variant(packed), out)
        rows_made = out.cpu().numpy()[[slots.index(row.slot) for row in rows]]  # the one wait of a step
        result = Made.of(rows_made, head.form.dtype)
        return lambda: result

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
            Batch(torch.tensor(slots, device=model.device), table, fixed=self._deterministic),
            torch.stack(texts),
            lambda embeds: model.talker.stack.decode(model.cache, slots, positions, embeds, alone),
        )
