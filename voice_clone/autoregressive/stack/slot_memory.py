"""The memory of keys and values of many streams, by slots; without torch where numpy's arrays hold it."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Protocol

from voice_clone.array_kinds import Numbers, kept, put


class KeysAndValues(Protocol):
    """Keys and values of all layers of a stack.

    Attributes:
        keys, values: [layers, slots, G, max_length, D], G key-value heads of D dimensions.
    """

    keys: Numbers
    values: Numbers

    @property
    def nbytes(self) -> int:
        """Bytes of both."""

    def move(self, source: int, target: int, length: int) -> None:
        """Move the first `length` positions of a slot to another one. Nothing of them stays."""

    def kept(self, slot: int, length: int) -> list[Numbers]:
        """A copy of the first `length` positions of a slot in the host's memory."""

    def put(self, slot: int, positions: list[Numbers]) -> None:
        """Write positions that were kept into a slot."""

    def wipe(self, slot: int, length: int) -> None:
        """Zero the first `length` positions of a slot.

        Needed only after non-finite values: a masked NaN is still a NaN in the sum.
        """

    def clear(self) -> None:
        """Zero all; on a CPU the memory goes back to the system."""


class SlotMemory:
    """What a `KeysAndValues` does with its memory.

    Attributes:
        _parts: [layers, slots, heads, max_length, D] each.
        _pages: those of each part, of `pages_of_zeros`; None: it has none.
    """

    _parts: Sequence[Numbers]
    _pages: Sequence[mmap.mmap | None]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def move(self, source: int, target: int, length: int) -> None:
        for part in self._parts:
            part[:, target, :, :length] = part[:, source, :, :length]
        self.wipe(source, length)

    def kept(self, slot: int, length: int) -> list[Numbers]:
        return [kept(part[:, slot, :, :length]) for part in self._parts]

    def put(self, slot: int, positions: list[Numbers]) -> None:
        for part, own in zip(self._parts, positions, strict=True):
            put(part[:, slot, :, : own.shape[2]], own)

    def wipe(self, slot: int, length: int) -> None:
        for part in self._parts:
            part[:, slot, :, :length] = 0

    def clear(self) -> None:
        for part, pages in zip(self._parts, self._pages, strict=True):
            if pages is None:
                part[:] = 0
            else:
                pages.madvise(mmap.MADV_DONTNEED)


def pages_of_zeros(size: int) -> mmap.mmap:
    """So many bytes in pages that do not exist before they are written to."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
