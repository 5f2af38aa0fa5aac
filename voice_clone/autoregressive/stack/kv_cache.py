"""The preallocated key-value cache of a decoder stack.

Shapes: B streams, T new positions, S positions read, H query heads, G key-value heads, D head dimension.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from voice_clone.autoregressive.stack.config import StackConfig
from voice_clone.autoregressive.stack.rotary import rotary_tables


@dataclass(frozen=True)
class Span:
    """Where new keys and values go in the cache, and how much of it is read back.

    Attributes:
        slots: the B slots written; a slice, or int64 [B].
        positions: with a slice of slots a slice of T positions; with int64 slots int64 [B], one position each.
        read: the same B slots to read; a slice wherever they are neighbours, because that copies nothing.
        length: S; positions 0..S-1 are read.
        each: with T = 1, how many positions each of the B streams sees; it then attends by itself, to these alone,
            and its result cannot depend on how long the others are. None: all attend together, under a mask.
        owner: with T = 1, where several of the B are positions of one stream: int64 [B], the stream of each, as its
            place in `read`. None: each is a stream of its own.
    """

    slots: Tensor | slice
    positions: Tensor | slice
    read: Tensor | slice
    length: int
    each: Sequence[int] | None = None
    owner: Tensor | None = None


class KVCache:
    """Keys and values of all layers: two tensors [layers, slots, G, max_length, D], zero at first.

    On a CPU a page of memory is taken when it is first written, because few streams are as long as a slot. Also the
    rotary tables of all positions, `cos` and `sin` [max_length, D].
    """

    def __init__(self, config: StackConfig, slots: int, max_length: int, like: Tensor) -> None:
        """`like` gives dtype and device."""
        shape = (config.num_hidden_layers, slots, config.num_key_value_heads, max_length, config.head_dim)
        (self.keys, key_pages), (self.values, value_pages) = _zeros(shape, like), _zeros(shape, like)
        self._pages = key_pages, value_pages
        self.cos, self.sin = rotary_tables(config, max_length, like)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def update(self, layer: int, k: Tensor, v: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """Store k and v [B, G, T, D]; return all keys and values read, [B, G, S, D]."""
        read = []
        for cache, new in ((self.keys[layer], k), (self.values[layer], v)):
            if isinstance(span.positions, slice):
                cache[span.slots, :, span.positions] = new
            else:
                cache[span.slots, :, span.positions] = new[:, :, 0]  # pairs (slot, position) -> [B, G, D]
            read.append(cache[span.read, :, : span.length])
        return read[0], read[1]

    def move(self, source: int, target: int, length: int) -> None:
        """Move the first `length` positions of a slot to another one."""
        for cache in (self.keys, self.values):
            cache[:, target, :, :length] = cache[:, source, :, :length]
        self.wipe(source, length)

    def wipe(self, slot: int, length: int) -> None:
        """Zero the first `length` positions of a slot.

        Needed only after non-finite values: a masked NaN is still a NaN in the sum.
        """
        self.keys[:, slot, :, :length] = 0
        self.values[:, slot, :, :length] = 0

    def clear(self) -> None:
        """Zero all; on a CPU the memory goes back to the system."""
        for tensor, pages in zip((self.keys, self.values), self._pages, strict=True):
            if pages is None:
                tensor.zero_()
            else:
                pages.madvise(mmap.MADV_DONTNEED)


def _zeros(shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, mmap.mmap | None]:
    """Zeros of the dtype and on the device of `like`; on a CPU pages that do not exist before they are written to."""
    if like.device.type != "cpu":
        return torch.zeros(shape, dtype=like.dtype, device=like.device), None
    size = math.prod(shape) * like.element_size()
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape), pages


def visible(length: int, offset: int, config: StackConfig, device: torch.device) -> Tensor | None:
    """Mask of `length` new positions after `offset` known ones, for each of the H/G heads of a group.

    Returns: bool [H/G * T, S], true where a query may look; None: everywhere.
    """
    if not config.causal and config.window is None:
        return None
    mask = torch.ones(length, offset + length, dtype=torch.bool, device=device)
    if config.causal:
        mask = mask.tril(offset)
    if config.window is not None:
        mask = mask.triu(offset - config.window + 1)
    return mask.repeat(config.num_attention_heads // config.num_key_value_heads, 1)
