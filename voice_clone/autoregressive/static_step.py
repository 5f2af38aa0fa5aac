"""Steps of fixed shapes over fixed tensors, which CUDA graphs can hold. Used on a GPU.

Row b is slot b. The rows are the first slots, up to the last one in use, rounded up to a size that graphs exist for;
rows without a stream are computed and ignored. A step is two graphs: the talker, which reads the newest frames, for
each number of rows and, under a mask, of positions read; and the head, which makes the next ones, for each number of
rows and variant of the head.

Frames stay on the device. So a step may begin before the host has seen the frames of the step before; the host sees
them a step late.

A graph of prompts is recorded for three maxima: positions that it reads at once, new streams that they belong to, and
positions of a slot that these see. The last is always the whole slot if each stream reads only its own length. Unused
rows are padding, and write after the last position of any stream.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from voice_clone.autoregressive.frame_head import FIXED, Batch, Row, Variant
from voice_clone.autoregressive.steps import FrameModel, PromptPiece, StepResult, WaitForStep
from voice_clone.layers.graphs import Download, GraphRunner, Step, Upload, halves_up_to, powers_up_to, round_up

LEAST_LENGTH = 256  # positions that the shortest graph of the talker reads
LEAST_POSITIONS = 32  # of prompts, that the smallest graph reads
MOST_STREAMS = 4  # whose prompts a graph reads


class StaticPrefill:
    """Read pieces of prompts.

    Args:
        runner: runs the steps.
        most: positions that are read at once; longer pieces are cut.
        lengths: numbers of a slot's positions for which steps are recorded.
        deterministic: there is one shape only, so that no neighbour changes a bit.
    """

    def __init__(
        self, model: FrameModel, runner: GraphRunner, most: int, lengths: Sequence[int], deterministic: bool
    ) -> None:
        self._model = model
        self._runner = runner
        streams = min(MOST_STREAMS, model.slots)
        self._counts = (most,) if deterministic else powers_up_to(most, LEAST_POSITIONS)
        self._streams = (streams,) if deterministic else tuple(sorted({1, streams}))
        self._lengths = lengths
        # All that the steps read besides the model's memory.
        sizes = [most, most, streams, streams, streams + 1]
        self._table = Upload((sum(sizes),), torch.int64, model.hidden.device)
        self._parts = torch.split(self._table.device, sizes)
        self._embeds = torch.zeros(most, len(model.no_text), dtype=model.hidden.dtype, device=model.hidden.device)

    @property
    def prompts_at_once(self) -> int:
        return self._streams[-1]

    def prepare(self) -> None:
        self._send([])
        for length in self._lengths:
            for streams in reversed(self._streams):  # the largest first: the others then fit its memory
                for count in reversed(self._counts):
                    self._runner.prepare(*self._read(count, streams, length))

    def run(self, pieces: Sequence[PromptPiece]) -> None:
        """Read pieces of different slots. If this raises, it may be tried again."""
        left = list(pieces)
        while left:
            taken: list[PromptPiece] = []
            room = self._counts[-1]
            while left and room and len(taken) < self.prompts_at_once:
                first, rest = left[0].cut(room)
                taken.append(first)
                room -= len(first.embeds)
                left[:1] = [rest] if len(rest.embeds) else []
            self._run(taken)

    def _run(self, pieces: Sequence[PromptPiece]) -> None:
        total = sum(len(piece.embeds) for piece in pieces)
        count, streams = round_up(total, self._counts), round_up(len(pieces), self._streams)
        length = round_up(max(piece.end for piece in pieces), self._lengths)
        self._send(pieces)
        torch.cat([piece.embeds for piece in pieces], out=self._embeds[:total])
        self._runner.run(*self._read(count, streams, length))

    def _send(self, pieces: Sequence[PromptPiece]) -> None:
        """Send the place and stream of each position, and the slot, last position and beginning of each stream.

        Surplus positions write at the idle position. Surplus streams repeat the first one and have no positions.
        """
        positions, owners, slots, lasts, begins = (np.zeros(len(part), np.int64) for part in self._parts)
        positions[:] = self._model.idle_position
        begin = 0
        for number, piece in enumerate(pieces):
            end = begin + len(piece.embeds)
            positions[begin:end] = np.arange(piece.start, piece.end)
            owners[begin:end] = number
            slots[number], lasts[number] = piece.slot, end - 1
            begin = end
            begins[number + 1 :] = end
        if pieces:
            slots[len(pieces) :], lasts[len(pieces) :] = slots[0], lasts[0]
        self._table.send(np.concatenate([positions, owners, slots, lasts, begins]))

    def _read(self, count: int, streams: int, length: int) -> tuple[Hashable, Step]:
        """Read the first `count` embeddings, of `streams` slots, at positions below `length`."""
        model = self._model

        def step() -> None:
            sizes = (count, count, streams, streams, streams + 1)
            positions, owners, slots, lasts, begins = (
                part[:size] for part, size in zip(self._parts, sizes, strict=True)
            )
            embeds = self._embeds[:count]
            hidden = model.talker.stack.prefill_together(model.cache, slots, owners, positions, embeds, length, begins)
            model.hidden[slots] = hidden[lasts]

        return ("prompt", count, streams, length), step


class StaticStep:
    """Make the next frame of any rows.

    Args:
        runner: runs the two parts of a step.
        deterministic: there is one shape only, so that no neighbour changes a bit.
        prefill_chunk: positions of prompts that are read at once.
    """

    ahead = True  # a step may begin before the host has seen the frames of the step before

    def __init__(self, model: FrameModel, runner: GraphRunner, deterministic: bool, prefill_chunk: int) -> None:
        self._model = model
        self._runner = runner
        slots, length, device = model.slots, model.idle_position, model.hidden.device
        self._batches = (slots,) if deterministic else powers_up_to(slots)
        # Under a mask every frame reads as many positions as its graph has; with powers of two alone a quarter of them
        # would be padding. A prompt is read once, and its graphs have more dimensions: powers of two are enough.
        one = deterministic or model.talker.stack.varlen
        self._lengths = (length,) if one else halves_up_to(length, LEAST_LENGTH)
        lengths = (length,) if one else powers_up_to(length, LEAST_LENGTH)
        self._prefill = StaticPrefill(model, runner, min(prefill_chunk, length), lengths, deterministic)
        # All that the steps read and write besides the model's memory.
        self._slots = torch.arange(slots, device=device)
        head = model.talker.head
        self._table = Upload((slots, FIXED + len(head.neutral) + head.draws), torch.float64, device)
        self._text = torch.zeros(slots, len(model.no_text), dtype=model.hidden.dtype, device=device)
        self._made = Download((slots, head.form.width + 2), model.newest.dtype, device)

    def prepare(self) -> None:
        """Record all shapes before there are streams, because a later recording would delay them."""
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
        return self._prefill.prompts_at_once

    def read(self, pieces: Sequence[PromptPiece]) -> None:
        """Read pieces of the prompts of different slots. If this raises, it may be tried again."""
        self._prefill.run(pieces)

    def size(self, slots: int) -> int:
        """Rows of a step of streams in the first so many slots."""
        return round_up(slots, self._batches)

    def begin(self, rows: Sequence[Row]) -> WaitForStep:
        """Begin the next frame of each row; all are of different slots, in their order. After an error the caller may
        try again.
        """
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
        return lambda: StepResult.of(wait()[slots], head.form.dtype)

    def _batch(self, rows: int) -> Batch:
        return Batch(self._slots[:rows], self._model.table(self._table.device[:rows]), fixed=True)

    def _advance(self, batch: int, length: int) -> tuple[Hashable, Step]:
        """Let the talker read the newest frames of the first `batch` slots, at positions below `length`."""
        model = self._model

        def step() -> None:
            rows = self._batch(batch)

            def decode(embeds: Tensor) -> Tensor:
                hidden: Tensor = model.talker.stack.decode_first(model.cache, rows.table.position, embeds, length)
                return hidden

            model.advance(rows, self._text[:batch], decode)

        return ("talker", batch, length), step

    def _make(self, batch: int, variant: Variant) -> tuple[Hashable, Step]:
        """Make the next frames of the first `batch` slots."""

        def step() -> None:
            self._model.make(self._batch(batch), variant, self._made.device[:batch])

        return ("frames", batch, variant), step
