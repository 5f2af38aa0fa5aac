"""Counts what a step costs a GPU, by the operators that it runs: kernels, bytes, arithmetic; and an estimated time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

ROWS_ALONE = ("embedding", "index", "gather", "index_select")  # of whose first tensor a few rows are read
WRITE_ALONE = ("zeros", "ones", "arange", "fill_", "zero_")
TWO_KERNELS = ("topk", "sort")
ATTENTION = "scaled_dot_product_attention"
# A guess: one block of threads goes through all keys of a head, which takes about 8 microseconds at 512 positions and
# 27 at 2048, however few streams there are. torch's kernels for masks do not split the keys.
ATTENTION_START, ATTENTION_POSITION = 1.7e-6, 12.4e-9  # seconds
FLASH = "_flash_attention_forward"  # each stream over its own length
COPY, MASK = "copy for rms_norm", "mask for attention"


@dataclass
class Account:
    """Of one step.

    Attributes:
        kernels: by operator.
        bytes: of all of them, together.
        flops: floating-point operations of products, likewise.
        seconds: estimated.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    flops: int = 0
    seconds: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.kernels.values())


class Counting:
    """Observes kernels; `account` starts at zero with each step.

    Attribute `positions`: that each stream's attention over its own length reads.

    Args:
        floor: seconds that a small kernel takes.
        bandwidth: bytes a second.
        rates: floating-point operations a second, by the dtype of the factors.
    """

    def __init__(self, floor: float, bandwidth: float, rates: Mapping[torch.dtype, float]) -> None:
        self._floor, self._bandwidth = floor, bandwidth
        self.rates = dict(rates)
        self.account = Account()
        self.positions = 0

    def __call__(self, operator: Any, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        name = operator.overloadpacket.__name__
        if name in ("empty", "_unsafe_view"):  # memory alone, and a view
            return
        if name == "rms_norm" and not read[0].is_contiguous():  # its kernel wants whole rows, one after the other
            self._add(COPY, 1, 2 * read[0].nbytes)
        if name == FLASH:
            self._add(*self._over_own_length(read, written))
            return
        least = 0.0
        if name == ATTENTION:
            least = ATTENTION_START + ATTENTION_POSITION * read[1].shape[-2]
            for mask in read[3:]:
                self._add(MASK, _conversions(mask), 2 * mask.nbytes)
        count = 2 if name in TWO_KERNELS else 1
        operations = flops(name, read, written)
        if operations:
            least = max(least, operations / self.rates[read[0].dtype])
        self._add(name, count, _size(name, read, written), operations, least)

    def _over_own_length(
        self, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
    ) -> tuple[str, int, int, int, float]:
        """Of attention over each stream's own length: as `_add` takes it."""
        queries, keys, used = read[0], read[1], read[-1]
        seen = 2 * len(used) * keys.shape[1] * self.positions * keys.shape[2] * keys.element_size()
        operations = 4 * queries.numel() * self.positions
        least = ATTENTION_START + ATTENTION_POSITION * self.positions
        return FLASH, 1, queries.nbytes + written[0].nbytes + seen, operations, least

    def _add(self, name: str, count: int, size: int, operations: int = 0, least: float = 0.0) -> None:
        if count:
            self.account.kernels[name] += count
            self.account.bytes += size
            self.account.flops += operations
            self.account.seconds += max(count * self._floor, size / self._bandwidth, least)


def flops(name: str, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> int:
    """Multiplications and additions of a product; 0 of all else."""
    if name == "linear":
        return 2 * read[0].numel() * read[1].shape[0]
    if name in ("matmul", "mm", "bmm"):
        return 2 * written[0].numel() * read[0].shape[-1]
    if name in ("addmm", "addmm_", "baddbmm"):
        return 2 * written[0].numel() * read[1].shape[-1]
    if name == "conv1d":
        return 2 * written[0].numel() * _each(read[1])
    if name == "conv_transpose1d":
        return 2 * read[0].numel() * _each(read[1])
    if name == ATTENTION:
        return 4 * read[0].numel() * read[1].shape[-2]
    return 0


def _each(weight: torch.Tensor) -> int:
    """Numbers of a weight for each of its first dimension."""
    return weight.numel() // weight.shape[0]


def _size(name: str, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> int:
    """Bytes of what a kernel reads and writes."""
    results = sum(each.nbytes for each in written)
    if name == "index_put_":
        return 2 * read[-1].nbytes  # of the cache, the rows that are written
    if name in ROWS_ALONE:
        read = [*read[1:], *written]
    elif name in WRITE_ALONE:
        read = []
    return results + sum(each.nbytes for each in read)


def _conversions(mask: torch.Tensor) -> int:
    """Kernels that turn a mask into what the attention takes: a bool one into numbers, and rows at multiples of 8."""
    if mask.dtype == torch.bool:  # of which the numbers lie one after the other
        return 2 + 2 * (mask.shape[-1] % 8 != 0)
    return 2 * any(stride % 8 for stride in mask.stride()[:-1])
