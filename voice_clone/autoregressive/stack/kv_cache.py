"""The preallocated key-value caches of a decoder stack.

Shapes: B streams, T new positions, S positions read, H query heads, G key-value heads, D head dimension.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.stack.rope import rotary_tables, rotation_tables
from voice_clone.autoregressive.stack.slot_memory import SlotMemory, pages_of_zeros
from voice_clone.autoregressive.stack.varlen_attention import VarlenAttention
from voice_clone.layers.graphs import CachedOnGpu


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
        owner: with T = 1, where several of the B are positions of one stream: int64 [B] each, the stream of each, as
            its place in `read`, and 0..B-1. None: each is a stream of its own.
        varlen: with T = 1, if each stream reads its own length alone. None: all attend under a mask.
    """

    slots: Tensor | slice
    positions: Tensor | slice
    read: Tensor | slice
    length: int
    each: Sequence[int] | None = None
    owner: tuple[Tensor, Tensor] | None = None
    varlen: VarlenAttention | None = None


class KVCache(SlotMemory):
    """Keys and values of all layers, zero at first; and the rotary tables of all positions.

    On a CPU a page of memory is taken when it is first written, because few streams are as long as a slot. On a GPU
    the values of a slot follow its keys, so that one kernel writes both.

    Attributes:
        keys, values: [layers, slots, G, max_length, D]; on a CPU the numbers of each lie one after the other.
        cos, sin: [max_length, D]; on a CPU.
        rotations: fp32 [max_length, 2, 2, D/2], see `rotation_tables`; on a GPU.
    """

    cos: Tensor
    sin: Tensor
    rotations: Tensor

    def __init__(self, config: StackConfig, slots: int, max_length: int, like: Tensor) -> None:
        """`like` gives dtype and device."""
        layers, groups = config.num_hidden_layers, config.num_key_value_heads
        self._groups = groups
        heads = (2 * groups,) if like.is_cuda else (groups, groups)
        made = [_zeros((layers, slots, count, max_length, config.head_dim), like) for count in heads]
        self._parts, self._pages = zip(*made, strict=True)
        self.keys, self.values = self._split(self._parts, 2)
        self._make_tables(config, max_length, like)

    def _make_tables(self, config: StackConfig, max_length: int, like: Tensor) -> None:
        if like.is_cuda:
            self.rotations = rotation_tables(config, max_length, like.device)
        else:
            self.cos, self.sin = rotary_tables(config, max_length, like)

    def part(self, layers: slice, config: StackConfig, like: Tensor) -> KVCache:
        """Some of the layers, in the same memory, with the rotary tables of a stack of these alone."""
        part = KVCache.__new__(KVCache)
        part._groups, part._pages = self._groups, (None,) * len(self._parts)
        part._parts = tuple(memory[layers] for memory in self._parts)
        part.keys, part.values = part._split(part._parts, 2)
        part._make_tables(config, self.keys.shape[3], like)
        return part

    def write(self, layer: int, new: Sequence[Tensor], span: Span) -> None:
        """Store keys and values: [B, G, T, D] each; on a GPU one tensor [B, 2 G, T, D]."""
        for part, heads in zip(self._parts, new, strict=True):
            cache = part[layer]
            if isinstance(span.positions, slice):
                cache[span.slots, :, span.positions] = heads
            else:
                cache[span.slots, :, span.positions] = heads[:, :, 0]  # pairs (slot, position) -> [B, heads, D]

    def update(self, layer: int, new: Sequence[Tensor], span: Span) -> tuple[Tensor, Tensor]:
        """As `write`; returns all keys and values that are read, [B, G, S, D] each."""
        self.write(layer, new, span)
        return self._split([part[layer][span.read, :, : span.length] for part in self._parts], 1)

    def of_layer(self, layer: int) -> Tensor:
        """Keys and values of a layer, [slots, 2 G, max_length, D]; on a GPU."""
        [part] = self._parts
        both: Tensor = part[layer]
        return both

    def _split(self, parts: Sequence[Tensor], dim: int) -> tuple[Tensor, Tensor]:
        """Keys and values as views of parts, whose heads are dimension `dim`."""
        keys, values = (piece for part in parts for piece in torch.split(part, self._groups, dim))
        return keys, values


def _zeros(shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, mmap.mmap | None]:
    """Zeros of the dtype and on the device of `like`; on a CPU pages that do not exist before they are written to."""
    if like.device.type != "cpu":
        return torch.zeros(shape, dtype=like.dtype, device=like.device), None
    pages = pages_of_zeros(math.prod(shape) * like.element_size())
    return torch.frombuffer(pages, dtype=like.dtype).view(shape), pages


def visible(length: int, offset: int, config: StackConfig, device: torch.device) -> Tensor | None:
    """Mask of `length` new positions after `offset` known ones, for each of the H/G heads of a group.

    Returns: bool [H/G * T, S], true where a query may look; None: everywhere.
    """
    if not config.causal:
        return None
    mask = torch.ones(length, offset + length, dtype=torch.bool, device=device).tril(offset)
    return mask.repeat(config.num_attention_heads // config.num_key_value_heads, 1)


class OneCall(KVCache):
    """Of calls that keep nothing: the positions of any sequences see those of the same call."""

    def __init__(self, config: StackConfig, length: int, like: Tensor) -> None:
        self._groups = config.num_key_value_heads
        self._parts, self._pages = (), ()
        self._make_tables(config, length, like)

    def update(self, layer: int, new: Sequence[Tensor], span: Span) -> tuple[Tensor, Tensor]:
        return self._split(new, 1)


class PackedKVCache(KVCache):
    """Queries, keys and values of each layer, in the order of the projection; for extensions alone.

    A frame overwrites what it reads. So each number of streams B has the memory for itself in its frame:
    [positions, B, H + 2 G, D], H query heads, G key-value heads.

    Attribute `folded`: the tables of `rope.fold_norms` of all positions, once they were needed.
    """

    def __init__(self, config: StackConfig, slots: int, max_length: int, like: Tensor) -> None:
        self._heads, self._groups = config.num_attention_heads, config.num_key_value_heads
        self._bias = config.qkv_bias
        self._shape = max_length, self._heads + 2 * self._groups, config.head_dim
        numbers = slots * math.prod(self._shape)
        self._parts = (torch.zeros(config.num_hidden_layers, numbers, dtype=like.dtype, device=like.device),)
        self._pages = (None,)
        self.rotations = rotation_tables(config, max_length, like.device)
        self.folded: CachedOnGpu[Tensor] = CachedOnGpu()

    def project(self, x: Tensor, linear: nn.Linear, layer: int, start: int) -> Tensor:
        """x [B, T, C], the positions from `start` on -> their numbers [T, B, H + 2 G, D], as they are in the cache."""
        batch, length, _ = x.shape
        packed = self._views(layer, batch)[start : start + length]
        for place, rows in zip(packed, x.unbind(1), strict=True):
            if self._bias:
                torch.addmm(linear.bias, rows, linear.weight.T, out=place.flatten(1))
            else:
                torch.mm(rows, linear.weight.T, out=place.flatten(1))
        return packed

    def read(self, layer: int, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `length` positions, [B, G, S, D] each."""
        seen = self._views(layer, batch)[:length, :, self._heads :].permute(1, 2, 0, 3)
        keys, values = torch.split(seen, self._groups, dim=1)
        return keys, values

    def _views(self, layer: int, batch: int) -> Tensor:
        """[positions, B, H + 2 G, D]."""
        length, *place = self._shape
        packed: Tensor = self._parts[0][layer, : batch * math.prod(self._shape)].view(length, batch, *place)
        return packed
