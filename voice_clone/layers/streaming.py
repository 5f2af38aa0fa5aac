"""Streaming of causal networks: modules with an explicit state.

A streaming module turns a chunk and its state into an output and the next state. The states of all such modules of a
network together are the state of a stream. Nothing writes into its tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Lengths:
    """The lengths of the signals of a padded batch. The host reads no value of a tensor.

    Args:
        lengths: int64 [B], the frames of each signal; padding follows them.
        frames: of all signals, padding included.
        longest: the most steps that `following` is asked for.
    """

    def __init__(self, lengths: Tensor, frames: int, longest: int) -> None:
        self._lengths, self._frames, self._longest = lengths, frames, longest
        self._numbers = torch.arange(max(frames, longest), device=lengths.device)
        self._padding: Tensor | None = None
        self._places: dict[int, Tensor] = {}  # by steps a frame

    def following(self, x: Tensor, count: int, dim: int) -> Tensor:
        """`count` steps of dimension `dim` of x, which begin `lengths` frames after x begins.

        x has `count` steps more than those of its frames.
        """
        rate = (x.shape[dim] - count) // self._frames
        if rate not in self._places:
            ends = self._lengths if rate == 1 else self._lengths * rate
            self._places[rate] = ends[:, None] + self._numbers[: self._longest]
        shape, sizes = [1] * x.ndim, list(x.shape)
        shape[0], shape[dim], sizes[dim] = len(x), count, count
        return x.gather(dim, self._places[rate][:, :count].view(shape).expand(sizes))

    def zero_padding(self, x: Tensor) -> Tensor:
        """x [B, C, T] with zeros in the place of padding; T is a multiple of the frames."""
        if self._padding is None:
            self._padding = self._numbers[: self._frames] >= self._lengths[:, None]  # [B, frames]
        by_frame = torch.unflatten(x, -1, (self._frames, -1))
        return by_frame.masked_fill(self._padding[:, None, :, None], 0).flatten(-2)


class StreamingModule(nn.Module, ABC):
    """A module whose outputs for the chunks of a signal, joined, equal its output for the whole signal."""

    @abstractmethod
    def new_state(self, batch: int) -> Tensor:
        """The state at the start of `batch` signals; the signals are its first dimension."""

    @abstractmethod
    def stream(self, x: Tensor, state: Tensor, *context: Any, valid: Lengths | None = None) -> tuple[Tensor, Tensor]:
        """A chunk and the state before it -> the output and the state after it. Does not write into `state`.

        Args:
            valid: the frames that are not padding; outputs that depend on padding are padding, too. None: all.
        """


Run = Callable[..., Tensor]
"""How a network runs its streaming modules: a module, its input and its context -> its output. A `ChunkPass`, or
`whole`."""


def whole(module: nn.Module, x: Tensor, *context: Tensor) -> Tensor:
    """The module's output for a whole signal."""
    out: Tensor = module(x, *context)
    return out


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
        self._valid: Lengths | None = None
        if lengths is not None:
            longest = max(size for buffer in buffers for size in buffer.shape[1:])  # no state has more steps
            self._valid = Lengths(lengths, frames, longest)

    def __call__(self, module: nn.Module, x: Tensor, *context: Tensor) -> Tensor:
        """The module's output for the chunk `x`."""
        assert isinstance(module, StreamingModule)
        slot = self.slots[module]
        out, self.buffers[slot] = module.stream(x, self.buffers[slot], *context, valid=self._valid)
        return out


def streaming_slots(network: nn.Module) -> dict[StreamingModule, int]:
    """A place for the buffer of each streaming module of a network, in the order of its definition."""
    modules = (module for module in network.modules() if isinstance(module, StreamingModule))
    return {module: slot for slot, module in enumerate(modules)}


def in_pieces(network: nn.Module, signal: Tensor, size: int) -> Iterator[tuple[Tensor, ChunkPass, Tensor]]:
    """A signal [1, C, T] in pieces of `size` steps: each, the way through the network, and its number, int64 [1]."""
    slots = streaming_slots(network)
    stream = ChunkPass(slots, [module.new_state(1) for module in slots])
    for number, piece in enumerate(torch.split(signal, size, dim=-1)):
        yield piece, stream, torch.full((1,), number, device=signal.device)
