"""Reads prompts in steps of fixed shapes, which CUDA graphs can hold. Used on a GPU.

A graph reads up to a number of positions, of up to a number of new streams at once, which see up to a number of
positions of their slots: all of them, where each stream reads its own length alone. What it holds too much of is
padding: it writes behind the last position of any stream.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch

from voice_clone.autoregressive.frame_head import Piece
from voice_clone.autoregressive.steps.frame_model import FrameModel
from voice_clone.layers.graphs import GraphRunner, Step, Upload, powers_up_to, round_up

LEAST_POSITIONS = 32  # that the smallest graph reads
MOST_STREAMS = 4  # that a graph reads for


class StaticPrefill:
    """Reads pieces of prompts.

    Args:
        runner: runs the steps.
        most: positions that are read at once; longer pieces are cut.
        lengths: the numbers of a slot's positions for which steps are recorded.
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
        self._table = Upload((sum(sizes),), torch.int64, model.device)
        self._parts = torch.split(self._table.device, sizes)
        self._embeds = torch.zeros(most, model.hidden.shape[1], dtype=model.hidden.dtype, device=model.device)

    @property
    def prompts_at_once(self) -> int:
        """The most streams that one step reads for."""
        return self._streams[-1]

    def prepare(self) -> None:
        """Record all shapes."""
        self._send([])
        for length in self._lengths:
            for streams in reversed(self._streams):  # the largest first: the others then fit its memory
                for count in reversed(self._counts):
                    self._runner.prepare(*self._read(count, streams, length))

    def run(self, pieces: Sequence[Piece]) -> None:
        """Read pieces of different slots. If this raises, it may be tried again."""
        left = list(pieces)
        while left:
            taken: list[Piece] = []
            room = self._counts[-1]
            while left and room and len(taken) < self.prompts_at_once:
                first, rest = left[0].cut(room)
                taken.append(first)
                room -= len(first.embeds)
                left[:1] = [rest] if len(rest.embeds) else []
            self._run(taken)

    def _run(self, pieces: Sequence[Piece]) -> None:
        total = sum(len(piece.embeds) for piece in pieces)
        count, streams = round_up(total, self._counts), round_up(len(pieces), self._streams)
        length = round_up(max(piece.end for piece in pieces), self._lengths)
        self._send(pieces)
        torch.cat([piece.embeds for piece in pieces], out=self._embeds[:total])
        self._runner.run(*self._read(count, streams, length))

    def _send(self, pieces: Sequence[Piece]) -> None:
        """Send each position's place and stream, each stream's slot and last position, and where each begins.

        Surplus positions write at the idle position. Surplus streams repeat the first one, and have no positions.
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
        """The first `count` embeddings, of `streams` slots, at positions below `length`."""
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
