"""The flow in CUDA graphs: a step of Euler's method for one block each of some streams, with all pages in one table.

A block takes some 5,000 kernels, which are small, so a GPU waits for the host most of the time. A graph holds the
kernels of one step; its number is a tensor, so that ten replays solve a block. There is a graph for each number of
streams, and of blocks that they see, their own among them; sizes between are padded. Keys and values are written into
the block's page and then read of all pages at once, by their numbers.

Shapes: B streams, P blocks that are seen, D the transformer's width; 2 stands for with and without guidance.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from voice_clone.families.cosyvoice3.config import MEL_BANDS
from voice_clone.families.cosyvoice3.decoder_config import HEAD_DIM, KERNEL, STEPS
from voice_clone.families.cosyvoice3.networks.flow import (
    BLOCK_FRAMES,
    FlowNetwork,
    Page,
    Rows,
    Span,
    mixed,
    step_lengths,
)
from voice_clone.layers.graphs import GraphRunner, Step, Upload, halves_up_to, powers_up_to, record_batches, round_up

MOST_STREAMS = 8  # of a graph; their rows fill a GPU
SEEN = halves_up_to(96, 8)  # blocks; with eights of positions the mask of the attention needs no padding
EMPTY, SURPLUS = 0, 1  # pages: one of zeros, which nothing writes; one for streams that are padding
RESERVED = 2


class GraphedFlow:
    """All pages, and the graphs that read and write them. For one thread."""

    def __init__(self, network: FlowNetwork, runner: GraphRunner, pages: int) -> None:
        self._network = network
        self._runner = runner
        self._batches = powers_up_to(MOST_STREAMS)
        config, device = network.config, network.device
        wide = {"device": device, "dtype": network.dtype}
        heads = (2, 2, config.heads, BLOCK_FRAMES, HEAD_DIM)
        # All that the steps read and write.
        self._keys = torch.empty(RESERVED + pages, STEPS, config.layers, *heads, **wide)  # type: ignore[call-overload]
        self._inputs = torch.empty(RESERVED + pages, STEPS, 2, 2, config.dim, KERNEL - 1, **wide)  # type: ignore[call-overload]
        self._keys[:RESERVED] = 0
        self._inputs[:RESERVED] = 0
        self._seen = Upload((MOST_STREAMS, SEEN[-1]), torch.int64, device)  # pages
        self._places = Upload((MOST_STREAMS, 3), torch.int64, device)  # own page, the one before, positions seen
        self._steps = torch.arange(STEPS, device=device)
        self._lengths = torch.tensor(np.array(step_lengths())).to(device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        frames = (MOST_STREAMS, 2, BLOCK_FRAMES)
        self._x = torch.zeros(MOST_STREAMS, BLOCK_FRAMES, MEL_BANDS, device=device)
        self._moved = torch.zeros_like(self._x)
        self._fixed = torch.zeros(*frames, 3 * MEL_BANDS, **wide)  # type: ignore[call-overload]
        self._turns = torch.zeros(2, *frames, HEAD_DIM, device=device)

    def new_page(self, number: int) -> Page:
        """The `number`-th page of the table, of so many as there are to be."""
        row = RESERVED + number
        return Page(number, self._keys[row], self._inputs[row])

    @torch.inference_mode()
    def prepare(self, streams: int) -> None:
        """Record the graphs of up to so many streams, as far as the GPU has memory for them."""
        wanted = tuple(each for each in self._batches if each < 2 * streams)
        left = record_batches(wanted, self._record, "solve blocks of")
        if left != wanted:
            self._batches = left

    def _record(self, batch: int) -> None:
        for seen in reversed(SEEN):
            self._send([], batch)
            self._runner.prepare(*self._graph(batch, seen))

    @torch.inference_mode()
    def solve(self, spans: Sequence[Span]) -> list[list[Tensor]]:
        """As of `FlowNetwork.solve`: each block with those of other streams. Blocks that get no page, and those behind
        more than the graphs see, are solved without graphs.
        """
        graphed = [all(span.keep) and len(span.pages) + len(span.blocks) <= SEEN[-1] for span in spans]
        rest = [span for span, each in zip(spans, graphed, strict=True) if not each]
        others = iter(self._network.solve(rest, together=True) if rest else [])
        solved: list[list[Tensor]] = [[] if each else next(others) for each in graphed]
        moving = [(span, found) for span, found, each in zip(spans, solved, graphed, strict=True) if each]
        for place in range(max((len(span.blocks) for span, _ in moving), default=0)):
            due = [(_alone(span, place), found) for span, found in moving if place < len(span.blocks)]
            for begin in range(0, len(due), self._batches[-1]):
                some = due[begin : begin + self._batches[-1]]
                for (span, found), x in zip(some, self._together([span for span, _ in some]), strict=True):
                    found.append(x[: len(span.blocks[0].tokens)].clone())
        return solved

    def _together(self, spans: Sequence[Span]) -> Tensor:
        """The frames [B, 50, bands] of spans of one block each."""
        batch = round_up(len(spans), self._batches)
        self._send(spans, batch)
        # A last block is shorter. What an earlier one left behind its end could be NaN, which no mask hides.
        self._x[: len(spans)] = 0
        self._fixed[: len(spans)] = 0
        for place, span in enumerate(spans):
            rows = Rows(self._network, span)
            count = len(rows.x[0])
            self._x[place, :count] = rows.x[0]
            self._fixed[place, :, :count] = rows.fixed[0]
            for part, turns in enumerate(rows.turns[0]):
                self._turns[part, place, :, :count] = turns
        key, step = self._graph(batch, round_up(max(len(span.pages) + 1 for span in spans), SEEN))
        for number in range(STEPS):
            self._step.copy_(self._steps[number : number + 1])
            self._runner.run(key, step)
            self._x.copy_(self._moved)
        return self._x[: len(spans)]

    def _send(self, spans: Sequence[Span], batch: int) -> None:
        """The pages of streams, and of padding, which sees its own page."""
        seen = np.full((batch, SEEN[-1]), EMPTY)
        places = np.full((batch, 3), (SURPLUS, EMPTY, BLOCK_FRAMES))
        seen[:, 0] = SURPLUS
        for place, span in enumerate(spans):
            [own] = span.keep
            assert own is not None
            numbers = [RESERVED + page.number for page in (*span.pages, own)]
            seen[place, : len(numbers)] = numbers
            before = numbers[-2] if span.pages else EMPTY
            places[place] = numbers[-1], before, BLOCK_FRAMES * len(span.pages) + len(span.blocks[0].tokens)
        self._seen.send(seen)
        self._places.send(places)

    def _graph(self, batch: int, seen: int) -> tuple[Hashable, Step]:
        """A step of `batch` streams, whose blocks are among the first `seen` ones. It moves `_x` to `_moved`."""
        network, config = self._network, self._network.config
        inputs, keys = self._inputs.flatten(0, 1), self._keys.flatten(0, 1)
        parts = self._keys.view(-1, BLOCK_FRAMES, HEAD_DIM)  # of a page, step, layer, of keys or values, and a head
        layer_parts = 4 * config.heads
        device = network.device

        def step() -> None:
            own, before, positions = self._places.device[:batch].unbind(1)
            pages, rows = self._seen.device[:batch, :seen] * STEPS + self._step, own * STEPS + self._step
            within = torch.arange(layer_parts, device=device).view(2, 1, 2, config.heads, 1)
            places = (pages * (config.layers * layer_parts))[None, :, None, None] + within
            unseen = torch.arange(seen * BLOCK_FRAMES, device=device) >= positions[:, None]
            mask = torch.zeros_like(unseen, dtype=network.dtype).masked_fill_(unseen, -torch.inf)
            mask = mask.repeat_interleave(2, 0)[:, None, None]
            cos, sin = self._turns[:, :batch].flatten(1, 3)[:, :, None]
            x = self._x[:batch, None].to(network.dtype).expand(-1, 2, -1, -1)
            past = list(inputs[before * STEPS + self._step].transpose(0, 1).flatten(1, 2).unbind())
            hidden = network.embed(x.flatten(0, 1), self._fixed[:batch].flatten(0, 1), past).flatten(0, 1)
            inputs[rows] = torch.stack([each.unflatten(0, (batch, 2)) for each in past], dim=1)
            tables = network.tables.index_select(0, self._step)[0]
            for number in range(config.layers):
                qkv = network.attention_inputs(number, tables[number], hidden, cos, sin)
                by_stream = qkv.view(batch, 2, BLOCK_FRAMES, 3, config.heads, HEAD_DIM).permute(0, 3, 1, 4, 2, 5)
                keys[rows, number] = by_stream[:, 1:]
                chosen = parts.index_select(0, (places + number * layer_parts).flatten())
                known, values = chosen.view(2, 2 * batch, config.heads, seen * BLOCK_FRAMES, HEAD_DIM)
                query = by_stream[:, 0].flatten(0, 1)
                heard = F.scaled_dot_product_attention(query, known, values, mask)
                heard = heard.transpose(1, 2).flatten(2).flatten(0, 1)
                hidden = network.behind_attention(number, tables[number], hidden, heard)
            directions = network.directions(network.final_table.index_select(0, self._step)[0], hidden)
            guided, free = directions.view(batch, 2, BLOCK_FRAMES, MEL_BANDS).unbind(1)
            distance = self._lengths.index_select(0, self._step)
            self._moved[:batch] = self._x[:batch] + distance * mixed(guided, free)

        return (batch, seen), step


def _alone(span: Span, place: int) -> Span:
    pages = [*span.pages, *(page for page in span.keep[:place] if page is not None)]
    return Span(span.speaker, pages, [span.blocks[place]], [span.keep[place]])
