"""Streaming of causal networks: modules with an explicit state, and the state of a whole network as a value.

A streaming module turns a chunk and its state into an output and the next state. The states of all such modules of a
network together are a `StreamState`; it can be forked, batched and split, because nothing writes into its tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class Valid:
    """How many steps of each signal of a batch count; padding follows them. The host reads no value of a tensor.

    Args:
        steps: int64 [B].
    """

    def __init__(self, steps: Tensor) -> None:
        self._steps = steps
        self._places: dict[tuple[int, int], Tensor] = {}

    def behind(self, x: Tensor, count: int, dim: int, rate: int = 1) -> Tensor:
        """`count` steps of dimension `dim` of x, from where `rate` times the valid steps end."""
        places = self._places.get((count, rate))
        if places is None:
            places = (self._steps * rate)[:, None] + torch.arange(count, device=x.device)
            self._places[count, rate] = places
        shape, sizes = [1] * x.ndim, list(x.shape)
        shape[0], shape[dim], sizes[dim] = len(x), count, count
        return x.gather(dim, places.view(shape).expand(sizes))

    def silenced(self, x: Tensor) -> Tensor:
        """x [B, C, T] with zeros in the place of padding."""
        padding = torch.arange(x.shape[-1], device=x.device) >= self._steps[:, None]
        return x.masked_fill(padding[:, None], 0)


class StreamingModule(nn.Module, ABC):
    """A module whose outputs for the chunks of a signal, joined, equal its output for the whole signal.

    Attributes:
        time: the dimension of a chunk that counts its steps.
    """

    time = -1

    @abstractmethod
    def new_state(self, batch: int) -> Tensor:
        """The state at the start of `batch` signals; the signals are its first dimension."""

    @abstractmethod
    def stream(self, x: Tensor, state: Tensor, *context: Any, valid: Valid | None = None) -> tuple[Tensor, Tensor]:
        """A chunk and the state before it -> the output and the state after it. Does not write into `state`.

        Args:
            valid: the steps that count; the outputs that the others reach are padding, too. None: all.
        """


@dataclass
class StreamState:
    """Where B streams are: everything of their past that the next frames depend on.

    `position` int64 [B] counts the frames so far; `buffers` are the states of the streaming modules, one each, with B
    as their first dimension. A step replaces the tensors and never writes into them.
    """

    position: Tensor
    buffers: list[Tensor]

    @property
    def nbytes(self) -> int:
        """Memory of all tensors."""
        return sum(tensor.nbytes for tensor in (self.position, *self.buffers))

    def fork(self) -> StreamState:
        """A second state that continues from here. It shares this one's tensors, which is safe."""
        return StreamState(self.position, list(self.buffers))

    @staticmethod
    def stack(states: Sequence[StreamState]) -> StreamState:
        """One batch of all streams of `states`, in order; at least one."""
        position = torch.cat([state.position for state in states])
        buffers = [torch.cat(parts) for parts in zip(*(state.buffers for state in states), strict=True)]
        return StreamState(position, buffers)

    def split(self) -> list[StreamState]:
        """The states of the single streams; none keeps the batch's memory alive."""
        return [
            StreamState(self.position[i : i + 1].clone(), [buffer[i : i + 1].clone() for buffer in self.buffers])
            for i in range(self.position.shape[0])
        ]


class ChunkPass:
    """One chunk's way through a network: runs each streaming module on its buffer and keeps the next buffer.

    Args:
        slots: the place of each module's buffer.
        buffers: before the chunk. Attribute `buffers`: after it.
        lengths: int64 [B], how many of the chunk's frames are each stream's; the others are padding. None: all.
        frames: of the chunk.
    """

    def __init__(
        self,
        slots: Mapping[StreamingModule, int],
        buffers: Sequence[Tensor],
        lengths: Tensor | None = None,
        frames: int = 1,
    ) -> None:
        self.slots = slots
        self.buffers = list(buffers)
        self._lengths, self._frames = lengths, frames
        self._valid: dict[int, Valid] = {}  # by steps a frame

    def __call__(self, module: nn.Module, x: Tensor, *context: Tensor) -> Tensor:
        """The module's output for the chunk `x`."""
        assert isinstance(module, StreamingModule)
        slot = self.slots[module]
        valid = self._valid_steps(x.shape[module.time] // self._frames)
        out, self.buffers[slot] = module.stream(x, self.buffers[slot], *context, valid=valid)
        return out

    def _valid_steps(self, rate: int) -> Valid | None:
        """Of a signal with so many steps a frame."""
        if self._lengths is None:
            return None
        if rate not in self._valid:
            self._valid[rate] = Valid(self._lengths * rate)
        return self._valid[rate]


def streaming_slots(network: nn.Module) -> dict[StreamingModule, int]:
    """A place for the buffer of each streaming module of a network, in the order of its definition."""
    modules = (module for module in network.modules() if isinstance(module, StreamingModule))
    return {module: slot for slot, module in enumerate(modules)}
