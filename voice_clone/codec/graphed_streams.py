"""The states of open streams in one table, because CUDA graphs need fixed addresses.

A stream is a row of the table. A step reads the rows of its streams, decodes, and writes the new states to other rows,
which then belong to the streams. So a batch that fails has changed no stream. A step takes three copies, whatever the
number of streams: rows and codes to the device, samples back.

A graph decodes up to a fixed number of frames of up to a fixed number of streams. Unused rows and frames are padding,
so streams of unequal chunks share a batch; longer chunks are decoded in pieces, because a stream is the same however it
is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voice_clone.codec.decoder import CodecFormat, RaggedDecoder, StreamState
from voice_clone.codec.open_streams import PIECE_FRAMES
from voice_clone.layers.graphs import Download, GraphRunner, Step, Upload, powers_up_to, record_batches, round_up

PADDING = 0  # the row that surplus streams of a batch read and write; its state stays as it is


@dataclass(frozen=True)
class Graphs:
    """The steps that are recorded as CUDA graphs.

    Attributes:
        runner: runs them.
        max_batch: streams decoded together.
        frames: the usual lengths of chunks; those above 64 count as 64.
    """

    runner: GraphRunner
    max_batch: int
    frames: Sequence[int]

    def streams(self, decoder: RaggedDecoder, form: CodecFormat, most: int) -> GraphedStreams:
        """The streams that they move on; arguments as of `GraphedStreams`."""
        return GraphedStreams(decoder, form, self, most)


class GraphedStreams:
    """`OpenStreams` in a table.

    Args:
        decoder: what the graphs hold.
        form: of its frames.
        graphs: the steps.
        most: streams that may be open. Memory is taken for all of them, and for the rows that a batch writes to.
    """

    supports_ragged_batches = True

    def __init__(self, decoder: RaggedDecoder, form: CodecFormat, graphs: Graphs, most: int) -> None:
        self._decoder = decoder
        self._form = form
        self._runner = graphs.runner
        self._batches = powers_up_to(graphs.max_batch)
        self._frames = sorted({1, *(min(length, PIECE_FRAMES) for length in graphs.frames)})
        buffers, rows, device = decoder.new_state(1).buffers, 1 + most + graphs.max_batch, decoder.device
        self._shapes = [buffer.shape[1:] for buffer in buffers]
        self._prepared = False
        self._numbers = count()
        self._row: dict[int, int] = {}  # of each stream
        self._free = [row for row in range(rows) if row != PADDING]
        # All that the steps read and write.
        size = sum(shape.numel() for shape in self._shapes)
        self._states = torch.zeros(rows, size, dtype=buffers[0].dtype, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        frames = graphs.max_batch * self._frames[-1]
        kind = torch.float32 if form.limits is None else torch.int64
        self._batch = Upload((graphs.max_batch, 3), torch.int64, device)  # row to read, row to write, frames
        self._codes = Upload((frames * form.payload.width,), kind, device)
        self._samples = Download((frames * form.frame_samples,), torch.float32, device)

    @torch.inference_mode()
    def prepare(self) -> None:
        """Record all shapes, with padding alone. Batches for which the GPU has too little memory are left out."""
        if self._prepared:
            return
        self._batches = record_batches(self._batches, self._record, "decode")
        self._prepared = True

    @torch.inference_mode()
    def open(self, state: StreamState[Tensor]) -> int:
        number, row = next(self._numbers), self._free[-1]
        self._states[row] = self._flat(state.buffers)[0]  # raises where memory lacks: the row then stays free
        self._positions[row : row + 1] = state.position
        self._row[number] = self._free.pop()
        return number

    @torch.inference_mode()
    def decode(self, streams: Sequence[int], frames: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        """As of `OpenStreams`; of at most `max_batch` streams."""
        self.prepare()
        moving = [place for place, each in enumerate(frames) if len(each)]
        rows = {place: self._free[number] for number, place in enumerate(moving)}
        waveforms = [np.zeros(0, np.float32) for _ in frames]
        for begin in range(0, len(moving), self._batches[-1]):
            places = moving[begin : begin + self._batches[-1]]
            sources, targets = [self._row[streams[place]] for place in places], [rows[place] for place in places]
            decoded = self._decode_together(sources, targets, [frames[place] for place in places])
            for place, waveform in zip(places, decoded, strict=True):
                waveforms[place] = waveform
        del self._free[: len(moving)]
        for place, row in rows.items():
            self._free.append(self._row[streams[place]])
            self._row[streams[place]] = row
        return waveforms

    @torch.inference_mode()
    def state(self, stream: int) -> StreamState[Tensor]:
        row = slice(self._row[stream], self._row[stream] + 1)
        return StreamState(self._positions[row].clone(), self._apart(self._states[row].clone()))

    def close(self, stream: int) -> None:
        self._free.append(self._row.pop(stream))

    def _decode_together(
        self, sources: Sequence[int], targets: Sequence[int], frames: Sequence[NDArray[Any]]
    ) -> list[NDArray[np.float32]]:
        """The frames of streams whose states are in the rows `sources`; afterwards they are in the rows `targets`."""
        batch, most = round_up(len(frames), self._batches), self._frames[-1]
        pieces: list[tuple[list[int], Callable[[], NDArray[Any]]]] = []
        for done in range(0, max(map(len, frames)), most):
            parts = [each[done : done + most] for each in frames]
            lengths = [len(part) for part in parts]
            size = round_up(max(lengths), self._frames)
            table = np.full((batch, 3), (PADDING, PADDING, 0))
            table[: len(parts)] = np.stack([targets if done else sources, targets, lengths], axis=1)
            self._batch.send(table)
            self._codes.send(self._form.table(parts, batch, size).reshape(-1))
            self._runner.run(*self._step(batch, size))
            pieces.append((lengths, self._samples.start(batch * size * self._form.frame_samples)))
        decoded: list[list[NDArray[np.float32]]] = [[] for _ in frames]
        for lengths, wait in pieces:
            samples = wait().reshape(batch, -1)
            for row, length, own in zip(samples, lengths, decoded, strict=False):  # the other rows are padding
                own.append(row[: length * self._form.frame_samples])
        return [own[0] if len(own) == 1 else np.concatenate(own) for own in decoded]

    def _record(self, batch: int) -> None:
        for frames in reversed(self._frames):
            self._runner.prepare(*self._step(batch, frames))

    def _step(self, batch: int, frames: int) -> tuple[Hashable, Step]:
        """Up to the next `frames` frames of `batch` streams."""
        width, samples = self._form.payload.width, frames * self._form.frame_samples

        def step() -> None:
            sources, targets, lengths = self._batch.device[:batch].unbind(1)
            state = StreamState(self._positions[sources], self._apart(self._states[sources]))
            codes = self._codes.device[: batch * width * frames].view(batch, width, frames)
            self._samples.device[: batch * samples].view(batch, samples)[:] = self._decoder.decode_chunk(
                codes, state, lengths
            )
            self._states[targets] = self._flat(state.buffers)
            self._positions[targets] = state.position

        return (batch, frames), step

    def _flat(self, buffers: Sequence[Tensor]) -> Tensor:
        """Buffers [B, ...] -> [B, S]."""
        return torch.cat([buffer.flatten(1) for buffer in buffers], dim=1)

    def _apart(self, flat: Tensor) -> list[Tensor]:
        """[B, S] -> views of it, the buffers [B, ...]."""
        parts = torch.split(flat, [shape.numel() for shape in self._shapes], dim=1)
        return [part.view(flat.shape[0], *shape) for part, shape in zip(parts, self._shapes, strict=True)]
