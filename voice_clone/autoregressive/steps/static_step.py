"""A step of fixed shapes over fixed tensors, which a CUDA graph can hold. Used on a GPU.

Row b is slot b. The rows are the first slots, up to the last one in use, rounded up to a size that graphs exist for;
rows without a stream are computed and ignored. A step is two graphs: the talker, which reads the newest frames, for
each number of rows and, under a mask, of positions read; and the head, which makes the next ones, for each number of
rows and variant of the head. Prompts are read likewise (static_prefill.py).

Frames stay on the device from frame to frame. So a step may be begun before the host has seen what the one before made;
the host sees it a step late.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from voice_clone.autoregressive.frame_head import FIXED, Batch, Made, Piece, Row, Variant, Wait
from voice_clone.autoregressive.steps.frame_model import FrameModel
from voice_clone.autoregressive.steps.static_prefill import StaticPrefill
from voice_clone.layers.graphs import Download, GraphRunner, Step, Upload, halves_up_to, powers_up_to, round_up

LEAST_LENGTH = 256  # positions that the shortest graph of the talker reads


class StaticStep:
    """Makes the next frame of any rows.

    Args:
        runner: runs the two parts of a step.
        deterministic: there is one shape only, so that no neighbour changes a bit.
        prefill_chunk: positions of prompts that are read at once.
    """

    def __init__(self, model: FrameModel, runner: GraphRunner, deterministic: bool, prefill_chunk: int) -> None:
        self._model = model
        self._runner = runner
        slots, length, device = model.slots, model.idle_position, model.device
        self._batches = (slots,) if deterministic else powers_up_to(slots)
        # Under a mask every frame reads as many positions as its graph has, with powers of two alone a quarter of them
        # in vain. A prompt is read once, and has more shapes.
        one = deterministic or model.talker.stack.own_lengths
        self._lengths = (length,) if one else halves_up_to(length, LEAST_LENGTH)
        lengths = (length,) if one else powers_up_to(length, LEAST_LENGTH)
        self._prefill = StaticPrefill(model, runner, min(prefill_chunk, length), lengths, deterministic)
        # All that the steps read and write besides the model's memory.
        self._slots = torch.arange(slots, device=device)
        head = model.talker.head
        self._table = Upload((slots, FIXED + len(head.neutral) + head.draws), torch.float64, device)
        self._text = torch.zeros_like(model.hidden)
        self._made = Download((slots, head.form.width + 2), head.dtype, device)

    def prepare(self) -> None:
        """Record all shapes, before there are streams: a later recording would delay them."""
        self._table.send(self._model.pack([None] * self._model.slots))
        for variant in self._model.talker.head.variants:
            for batch in reversed(self._batches):  # the largest first: the others then fit its memory
                self._runner.prepare(*self._make(batch, variant))
        for length in self._lengths:
            for batch in reversed(self._batches):
                self._runner.prepare(*self._advance(batch, length))
        self._prefill.prepare()

    @property
    def prompts_at_once(self) -> int:
        """The most prompts of which one step reads pieces."""
        return self._prefill.prompts_at_once

    def read(self, pieces: Sequence[Piece]) -> None:
        """Read pieces of the prompts of different slots. If this raises, it may be tried again."""
        self._prefill.run(pieces)

    def size(self, slots: int) -> int:
        """Rows of a step of streams in the first so many slots."""
        return round_up(slots, self._batches)

    def begin(self, rows: Sequence[Row]) -> Wait:
        """Of rows of different slots, in their order. If this raises, it may be tried again."""
        slots = [row.slot for row in rows]
        batch = self.size(max(slots) + 1)
        by_slot = dict(zip(slots, rows, strict=True))
        padded = [by_slot.get(slot) for slot in range(batch)]
        table = self._model.pack(padded)
        self._table.send(table)
        positions = [row.position for row in rows if row.frame]
        if positions:
            texts = [row.text if row and row.frame else self._model.no_text for row in padded]
            torch.stack(texts, out=self._text[:batch])
            self._runner.run(*self._advance(batch, round_up(max(positions) + 1, self._lengths)))
        needed, head = self._model.variant(table), self._model.talker.head
        self._runner.run(*self._make(batch, next(variant for variant in head.variants if variant.covers(needed))))
        wait = self._made.start(batch)
        return lambda: Made.of(wait()[slots], head.form.dtype)

    def _batch(self, rows: int) -> Batch:
        """The first slots."""
        return Batch(self._slots[:rows], self._model.table(self._table.device[:rows]), fixed=True)

    def _advance(self, batch: int, length: int) -> tuple[Hashable, Step]:
        """The talker reads the newest frames of the first `batch` slots, at positions below `length`."""
        model = self._model

        def step() -> None:
            rows = self._batch(batch)

            def decode(embeds: Tensor) -> Tensor:
                return model.talker.stack.decode_first(model.cache, rows.table.position, embeds, length)

            model.advance(rows, self._text[:batch], decode)

        return ("talker", batch, length), step

    def _make(self, batch: int, variant: Variant) -> tuple[Hashable, Step]:
        """The next frames of the first `batch` slots."""

        def step() -> None:
            self._model.make(self._batch(batch), variant, self._made.device[:batch])

        return ("frames", batch, variant), step
