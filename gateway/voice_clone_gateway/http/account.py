"""One account of the bytes that callers hold in the gateway's memory: bodies, messages, whole answers, exports.

A caller may take all that is free. When nothing is, the caller that holds most gives what it began to hold last, if the
one that asks holds less; so no caller is refused because of what another one holds.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .errors import HTTPFailure

MUCH = 8 << 20
"""Bytes that must have been freed before memory is given back."""


class Full(HTTPFailure):
    """There is no room for more bytes, or those of this item were given to another caller. Nothing more is read."""

    def __init__(self, retry_after: int) -> None:
        message = "the gateway has no room for this now; try again later"
        headers = {"Connection": "close", "Retry-After": str(retry_after)}
        super().__init__(503, message, "overloaded", "server_error", headers=headers)


class Item:
    """Some bytes of a caller; see `Account.open`."""

    def __init__(self, account: Account, caller: str, give: Callable[[], object]) -> None:
        self._account = account
        self.caller = caller
        self.size = 0
        self.frozen = False
        self.given = False
        self._give = give

    def add(self, count: int) -> None:
        """Hold so many bytes more, or fewer.

        Raises:
            Full: there is no room for more, or the item is closed or was given away.
        """
        self._account._add(self, count)

    def add_spare(self, count: int) -> None:
        """As `add`, for what the caller can do without: only while half of the account stays free.

        Raises:
            Full: it would not.
        """
        if count > 0 and self._account.held() + count > self._account.total // 2:
            raise self._account.full()
        self.add(count)

    @contextmanager
    def part(self) -> Iterator[Callable[[int], None]]:
        """`add` for what is held until the end of the block."""
        size = 0

        def add(count: int) -> None:
            nonlocal size
            self.add(count)
            size += count

        try:
            yield add
        finally:
            self.add(-size)

    def move(self, caller: str) -> None:
        """Let it be another caller's."""
        size = self.size
        self._account._change(self, -size)
        self.caller = caller
        self._account._change(self, size)

    def freeze(self) -> bool:
        """Never give it away, if no more than half of the account is frozen then; whether that is so."""
        self._account._freeze(self)
        return self.frozen

    def give(self) -> None:
        """Free its bytes for another caller, and end what holds them."""
        self.close()
        self.given = True
        self._give()

    def close(self) -> None:
        self._account._close(self)


class Account:
    """Counts them; never more than `total`. Not thread-safe.

    Args:
        total: bytes.
        retry_after: seconds, for those that find no room.
    """

    def __init__(self, total: int, retry_after: int = 1) -> None:
        self.total = total
        self._retry_after = retry_after
        self._items: dict[Item, None] = {}  # in the order in which they were opened
        self._of_caller: Counter[str] = Counter()
        self.most = 0  # bytes that were held at once since memory was last given back
        self._held = 0
        self._frozen = 0

    def open(self, caller: str, give: Callable[[], object]) -> Item:
        """A new item, without bytes.

        Args:
            caller: whose it is.
            give: ends what holds the bytes, when they go to another caller.
        """
        item = Item(self, caller, give)
        self._items[item] = None
        return item

    def held(self, caller: str | None = None) -> int:
        """The bytes of a caller, or of all."""
        return self._held if caller is None else self._of_caller[caller]

    def full(self) -> Full:
        return Full(self._retry_after)

    @contextmanager
    def holding(self, caller: str) -> Iterator[Item]:
        """What this task holds during the block.

        Raises:
            Full: it was given to another caller, which ended the block.
        """
        task = asyncio.current_task()
        assert task is not None
        item = self.open(caller, task.cancel)
        try:
            yield item
        except asyncio.CancelledError:
            if not item.given:
                raise
            getattr(task, "uncancel", int)()  # Python 3.10 counts no cancellations
            raise self.full() from None
        finally:
            item.close()

    def _add(self, item: Item, count: int) -> None:
        if count > 0 and (item not in self._items or (item.frozen and not self._may_freeze(count))):
            raise self.full()
        while count > 0 and self._held + count > self.total:
            giver = self._giver(item.caller) if count <= self.total else None
            if giver is None:
                raise self.full()
            giver.give()
        if item in self._items:
            self._change(item, count)

    def _giver(self, asker: str) -> Item | None:
        """The newest item that may be given away of the caller that holds most, and more than the one that asks."""
        own = self._of_caller[asker]
        found = [item for item in self._items if item.size and not item.frozen and self._of_caller[item.caller] > own]
        return max(reversed(found), key=lambda item: self._of_caller[item.caller], default=None)

    def _may_freeze(self, count: int) -> bool:
        return self._frozen + count <= self.total // 2

    def _freeze(self, item: Item) -> None:
        if item in self._items and not item.frozen and self._may_freeze(item.size):
            item.frozen = True
            self._frozen += item.size

    def _change(self, item: Item, count: int) -> None:
        item.size += count
        self._held += count
        self.most = max(self.most, self._held)
        self._frozen += count * item.frozen
        self._of_caller[item.caller] += count
        if not self._of_caller[item.caller]:
            del self._of_caller[item.caller]

    def _close(self, item: Item) -> None:
        if item in self._items:
            self._change(item, -item.size)
            del self._items[item]


async def give_back(account: Account, seconds: float = 15.0) -> None:
    """Give memory back to the system whenever much was freed. glibc keeps it for later allocations."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return
    while True:
        await asyncio.sleep(seconds)
        if account.most - account.held() > MUCH:
            account.most = account.held()
            await asyncio.to_thread(trim, 0)


class Answer:
    """The bytes of one answer that is made as a whole before it is sent.

    Args:
        held: of the request.
        most: bytes.
    """

    def __init__(self, held: Item, most: int) -> None:
        self._held = held
        self._most = most
        self._size = 0

    def has(self, size: int) -> None:
        """It has so many bytes now.

        Raises:
            HTTPFailure: 400, these are too many.
            Full: there is no room for them.
        """
        if size > self._most:
            message = f"the answer has more than {self._most} bytes, the most that are kept for one; stream it"
            raise HTTPFailure(400, message, "answer_too_large", param="stream")
        try:
            self._held.add(size - self._size)
        except Full:
            self.drop()
            raise
        self._size = size

    def drop(self) -> None:
        """It will not be sent."""
        self._held.add(-self._size)
        self._size = 0
