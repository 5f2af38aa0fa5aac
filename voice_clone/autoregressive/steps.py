"""One frame of many streams: the memory of their slots, and the step whose shapes follow the live streams.

Nothing in `FrameModel` reads a value on the device: what it does depends on shapes and on what the host knows. So it
runs eagerly on rows of any slots (`EagerStep`, on a CPU) as well as in CUDA graphs (static_step.py).

Shapes: B rows, W numbers of a frame, I input size of the stack, C hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers, in_kind_of, kept, namespace, on_host, put, zeros
from voice_clone.autoregressive.frame_head import FIXED, LIVE, Batch, Row, RowTable, Variant
from voice_clone.autoregressive.talker import Talker


class StepResult(NamedTuple):
    """What a step made, on the host.

    Attributes:
        payload: [B, W], of the dtype of the head's form.
        ended, finite: bool [B], as of `MadeFrames`.
    """

    payload: npt.NDArray[Any]
    ended: npt.NDArray[np.bool_]
    finite: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, rows: npt.NDArray[Any], dtype: npt.DTypeLike) -> StepResult:
        """`rows` [B, W + 2]: payload, whether it ended, whether it was finite."""
        return cls(rows[:, :-2].astype(dtype), rows[:, -2] != 0, rows[:, -1] != 0)


WaitForStep = Callable[[], StepResult]
"""Waits for a step that was begun."""


class PromptPiece(NamedTuple):
    """Consecutive positions of the prompt of one stream.

    Attributes:
        slot: of its memory.
        start: the first position.
        embeds: [n, I].
    """

    slot: int
    start: int
    embeds: Numbers

    @property
    def end(self) -> int:
        """Behind the last position."""
        return self.start + len(self.embeds)

    def cut(self, count: int) -> tuple[PromptPiece, PromptPiece]:
        """The first `count` positions, and the others."""
        first, rest = self.embeds[:count], self.embeds[count:]
        return PromptPiece(self.slot, self.start, first), PromptPiece(self.slot, self.start + len(first), rest)


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
        self.cache = talker.stack.new_cache(slots, max_length + idle_rows)
        self.memory = head.new_memory(slots, max_length, like)
        self.hidden = zeros((slots, talker.stack.hidden_size), like)
        self.newest = zeros((slots, head.form.width), like, head.dtype)
        self.no_text = zeros((talker.stack.input_size,), like)

    def pack(self, rows: Sequence[Row | None]) -> npt.NDArray[np.float64]:
        """The table of a step; None is a row without a stream."""
        head = self.talker.head
        return RowTable.pack(rows, head.neutral, head.draws, self.idle_position)

    def table(self, packed: Numbers) -> RowTable:
        return RowTable(packed, self.talker.head.draws)

    def variant(self, packed: npt.NDArray[np.float64]) -> Variant:
        """What the rows with a stream need of the head."""
        live, head = packed[packed[:, LIVE] != 0], self.talker.head
        return head.variant_of(live[:, FIXED : live.shape[1] - head.draws])

    def advance(self, batch: Batch, text: Numbers, decode: Callable[[Numbers], Numbers]) -> None:
        """Read the newest frame of the rows that move, so that `hidden` and `memory` are those of the next one.

        The result depends on nothing that this changes, so it may run again.

        Args:
            text: [B, I], what is added to the frames' embeddings.
            decode: the talker's step for these rows, [B, I] -> [B, C].
        """
        slots, moves = batch.slots, batch.table.moves
        newest = self.newest[slots]
        self.talker.head.read(self.memory, batch, newest)
        hidden = decode(self.talker.embed_frames(newest) + text)
        self.hidden[slots] = namespace(hidden).where(moves[:, None], hidden, self.hidden[slots])

    def make(self, batch: Batch, variant: Variant, out: Numbers) -> None:
        """Make the next frame of each row, and keep it as the newest of the rows with a stream.

        Args:
            out: [B, W + 2] of the head's dtype; gets the frames, whether each stream ended, whether all was finite.
        """
        made = self.talker.head.make(self.memory, batch.of(self.hidden), batch, variant)
        width = made.payload.shape[1]
        out[:, :width] = made.payload
        out[:, width] = made.ended
        out[:, width + 1] = made.finite
        # Last, so that a step that failed before this line can run again.
        live, newest = batch.table.live[:, None], self.newest[batch.slots]
        self.newest[batch.slots] = namespace(newest).where(live, made.payload, newest)

    def move(self, source: int, target: int, length: int) -> None:
        """Move the stream of a slot to a free one; `length` positions of the cache are its own. Nothing of it stays."""
        self.cache.move(source, target, length)
        for memory in self._by_slot:
            memory[target] = memory[source]

    def kept(self, slot: int, length: int) -> tuple[Any, list[Numbers]]:
        """A copy of a slot's stream in the host's memory; `length` as of `move`."""
        return self.cache.kept(slot, length), [kept(memory[slot]) for memory in self._by_slot]

    def put(self, slot: int, stream: tuple[Any, list[Numbers]]) -> None:
        """Give a free slot to a stream that was kept."""
        positions, numbers = stream
        self.cache.put(slot, positions)
        for memory, own in zip(self._by_slot, numbers, strict=True):
            put(memory[slot], own)

    @property
    def _by_slot(self) -> list[Numbers]:
        """What there is of each slot beside the cache."""
        return [self.hidden, self.newest, *self.memory.by_slot]


class EagerStep:
    """Makes the next frame of any rows.

    Args:
        deterministic: always compute all slots, occupied or not, and let each row attend by itself, so that no
            neighbour changes a bit.
    """

    ahead = False  # a step waits for its frames

    def __init__(self, model: FrameModel, deterministic: bool) -> None:
        self._model = model
        self._deterministic = deterministic

    def prepare(self) -> None:
        """Nothing: shapes are not known before."""

    def size(self, slots: int) -> int:
        """All slots: no stream need move to the first ones, because a step computes the live ones alone."""
        return self._model.slots

    @property
    def prompts_at_once(self) -> int:
        """Any number: each is read by itself, and only the positions take time."""
        return self._model.slots

    def read(self, pieces: Sequence[PromptPiece]) -> None:
        """Read pieces of the prompts of different slots, each by itself. If this raises, it may be tried again."""
        model = self._model
        for piece in pieces:
            model.hidden[piece.slot] = model.talker.stack.prefill(model.cache, piece.slot, piece.embeds, piece.start)

    def begin(self, rows: Sequence[Row]) -> WaitForStep:
        """Of rows of different slots, in their order. If this raises, it may be tried again."""
        batch: list[Row | None] = [*sorted(rows, key=lambda row: row.slot)]
        if self._deterministic:
            by_slot = {row.slot: row for row in rows}
            batch = [by_slot.get(slot) for slot in range(self._model.slots)]
        slots = [row.slot if row else place for place, row in enumerate(batch)]
        model = self._model
        packed = model.pack(batch)
        table = model.table(in_kind_of(model.hidden, packed))
        self._advance(batch, slots, table)
        head = model.talker.head
        out = zeros((len(slots), head.form.width + 2), model.hidden, head.dtype)
        made = Batch(in_kind_of(model.hidden, np.array(slots)), table, fixed=self._deterministic)
        model.make(made, model.variant(packed), out)
        rows_made = on_host(out)[[slots.index(row.slot) for row in rows]]  # the one wait of a step
        result = StepResult.of(rows_made, head.form.dtype)
        return lambda: result

    def _advance(self, batch: Sequence[Row | None], slots: Sequence[int], table: RowTable) -> None:
        """Read the newest frames, of the rows that have one."""
        model = self._model
        places = [place for place, row in enumerate(batch) if row and row.frame]
        if not places:
            return
        if not self._deterministic and len(places) < len(batch):
            table = table.at(in_kind_of(model.hidden, np.array(places)))
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
            Batch(in_kind_of(model.hidden, np.array(slots)), table, fixed=self._deterministic),
            namespace(model.hidden).stack(texts),
            lambda embeds: model.talker.stack.decode(model.cache, slots, positions, embeds, alone),
        )
