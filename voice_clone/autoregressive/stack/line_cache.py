"""The cache of a code predictor on a GPU: layers project to where keys and values are read, so nothing is copied."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from voice_clone.autoregressive.stack.config import StackConfig
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.stack.turns import turn_tables
from voice_clone.layers.graphs import CachedOnGpu


class LineCache(KVCache):
    """Queries, keys and values of each layer, in the order of the projection; for extensions alone.

    A frame overwrites what it reads. So each number of streams B has the memory for itself in its frame: lines
    [positions, B, H + 2 G, D], H query heads, G key-value heads.

    Attribute `folded`: the tables of `turns.fold` of all positions, once they were needed.
    """

    def __init__(self, config: StackConfig, slots: int, max_length: int, like: Tensor) -> None:
        """`like` gives dtype and device, a GPU."""
        self._heads, self._groups = config.num_attention_heads, config.num_key_value_heads
        self._bias = config.qkv_bias
        self._shape = max_length, self._heads + 2 * self._groups, config.head_dim
        numbers = slots * math.prod(self._shape)
        self._parts = (torch.zeros(config.num_hidden_layers, numbers, dtype=like.dtype, device=like.device),)
        self._pages = (None,)
        self.turns = turn_tables(config, max_length, like.device)
        self.folded: CachedOnGpu[Tensor] = CachedOnGpu()

    def project(self, x: Tensor, linear: nn.Linear, layer: int, start: int) -> Tensor:
        """x [B, T, C], the positions from `start` on -> their lines [T, B, H + 2 G, D], as they are in the cache."""
        batch, length, _ = x.shape
        lines = self._lines(layer, batch)[start : start + length]
        for line, rows in zip(lines, x.unbind(1), strict=True):
            if self._bias:
                torch.addmm(linear.bias, rows, linear.weight.T, out=line.flatten(1))
            else:
                torch.mm(rows, linear.weight.T, out=line.flatten(1))
        return lines

    def read(self, layer: int, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `length` positions, [B, G, S, D] each."""
        seen = self._lines(layer, batch)[:length, :, self._heads :].permute(1, 2, 0, 3)
        keys, values = torch.split(seen, self._groups, dim=1)
        return keys, values

    def _lines(self, layer: int, batch: int) -> Tensor:
        """[positions, B, H + 2 G, D]."""
        length, *line = self._shape
        lines: Tensor = self._parts[0][layer, : batch * math.prod(self._shape)].view(length, batch, *line)
        return lines
