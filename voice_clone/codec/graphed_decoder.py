"""A codec decoder in steps of fixed shapes, which CUDA graphs can hold. Used on a GPU.

A graph decodes up to a fixed number of frames of up to a fixed number of streams. What is too much is padding, so
streams of unequal chunks share a batch; longer chunks are decoded in pieces, because a stream is the same however it is
cut. A stream's state is one flat vector: one copy in, one copy out.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voice_clone.codec.decoder import CodecFormat, PaddedDecoder, VoiceDecoder
from voice_clone.layers.graphs import GraphRunner, Step, Upload, powers_up_to, round_up
from voice_clone.layers.streaming import StreamState

LONGEST = 64  # frames of a graph: beyond, its memory grows and nothing is gained


class GraphedDecoder:
    """A `StreamDecoder` that runs another one in graphs.

    Args:
        decoder: what the graphs hold.
        form: of its frames.
        max_batch: streams decoded together.
        frames: the usual lengths of chunks.
        runner: runs the steps.
    """

    def __init__(
        self, decoder: PaddedDecoder, form: CodecFormat, max_batch: int, frames: Sequence[int], runner: GraphRunner
    ) -> None:
        self._decoder = decoder
        self._runner = runner
        self._batches = powers_up_to(max_batch)
        self._frames = sorted({1, *(length for length in frames if length <= LONGEST)})
        self._samples = form.frame_samples
        state = decoder.new_state(max_batch)
        self._shapes = [buffer.shape[1:] for buffer in state.buffers]
        # All that the steps read and write.
        self._position = state.position
        self._state = self._flat(state.buffers)
        self._next_state = torch.zeros_like(self._state)
        kind = torch.float32 if form.limits is None else torch.int64
        self._codes = torch.zeros(max_batch, form.payload.width, self._frames[-1], dtype=kind, device=decoder.device)
        self._lengths = Upload((max_batch,), torch.int64, decoder.device)
        self._waveform = decoder.decode_chunk(self._codes, state)  # of this shape and dtype

    @property
    def device(self) -> torch.device:
        """Where codes are expected and states lie."""
        return self._decoder.device

    @torch.inference_mode()
    def prepare(self) -> None:
        """Record all shapes."""
        for frames in reversed(self._frames):
            for batch in reversed(self._batches):  # the largest first: the others then fit its memory
                self._runner.prepare(*self._step(batch, frames))

    @torch.inference_mode()
    def new_state(self, batch: int) -> StreamState:
        """The state of `batch` streams before their first frame."""
        state = self._decoder.new_state(batch)
        return StreamState(state.position, [self._flat(state.buffers)])

    @torch.inference_mode()
    def decode_chunk(self, codes: Tensor, state: StreamState, lengths: Sequence[int] | None = None) -> Tensor:
        """[B, K, n] and the streams' state, which moves on -> [B, n * samples of a frame].

        Args:
            lengths: how many of the n frames are each stream's. None: all.
        """
        batch, _, whole = codes.shape
        size = round_up(batch, self._batches)
        own = np.full(batch, whole) if lengths is None else np.array(lengths)
        self._state[:batch] = state.buffers[0]
        self._position[:batch] = state.position
        done, pieces = 0, []
        while done < whole:
            frames = round_up(min(whole - done, self._frames[-1]), self._frames)
            count = min(frames, whole - done)  # the rest of the piece is padding
            here = np.zeros(size, np.int64)
            here[:batch] = (own - done).clip(0, count)
            self._lengths.send(here)
            self._codes[:batch, :, :count] = codes[..., done : done + count]
            self._runner.run(*self._step(size, frames))
            pieces.append(self._waveform[:batch, : count * self._samples].clone())
            self._state[:batch] = self._next_state[:batch]
            self._position[:batch] += self._lengths.device[:batch]
            done += count
        state.position = self._position[:batch].clone()
        state.buffers = [self._state[:batch].clone()]
        return torch.cat(pieces, dim=-1)

    @torch.inference_mode()
    def prime(self, codes: Tensor, state: StreamState) -> None:
        """Move fresh streams on over frames whose samples are not wanted."""
        apart = StreamState(state.position, self._apart(state.buffers[0]))
        self._decoder.prime(codes, apart)
        state.position, state.buffers = apart.position, [self._flat(apart.buffers)]

    @torch.inference_mode()
    def condition(self, state: StreamState, voice: Mapping[str, NDArray[Any]]) -> None:
        """As of a `VoiceDecoder`, if the decoder in the graphs is one."""
        apart = StreamState(state.position, self._apart(state.buffers[0]))
        cast(VoiceDecoder, self._decoder).condition(apart, voice)
        state.position, state.buffers = apart.position, [self._flat(apart.buffers)]

    def _step(self, batch: int, frames: int) -> tuple[Hashable, Step]:
        """Up to the next `frames` frames of the first `batch` streams of the fixed tensors."""

        def step() -> None:
            state = StreamState(self._position[:batch], self._apart(self._state[:batch]))
            lengths = self._lengths.device[:batch]
            waveform = self._decoder.decode_chunk(self._codes[:batch, :, :frames], state, lengths)
            self._waveform[:batch, : waveform.shape[1]] = waveform
            self._next_state[:batch] = self._flat(state.buffers)

        return (batch, frames), step

    def _flat(self, buffers: Sequence[Tensor]) -> Tensor:
        """Buffers [B, ...] -> [B, S]."""
        return torch.cat([buffer.flatten(1) for buffer in buffers], dim=1)

    def _apart(self, flat: Tensor) -> list[Tensor]:
        """[B, S] -> views of it, the buffers [B, ...]."""
        parts = torch.split(flat, [shape.numel() for shape in self._shapes], dim=1)
        return [part.view(flat.shape[0], *shape) for part, shape in zip(parts, self._shapes, strict=True)]
