"""A few places for work that takes long, which go to the callers in turn."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from voice_clone_client import Overloaded
from voice_clone_client.callers import caller_here


class TooManyWait(Overloaded):
    """A caller has too much that waits, or this has waited too long.

    Args:
        what: waits.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"too many {what} of this caller wait; send one after the other")
        self.code = f"too_many_{what}"


class Places:
    """The places.

    Args:
        most: how many.
        waiting: how many of one caller may wait.
        seconds: for which one may wait; None for any time.
        what: has them, in the plural.
        more: places beyond them, each for a caller that has none.
    """

    def __init__(
        self, most: int, waiting: float = math.inf, seconds: float | None = None, what: str = "", more: int = 0
    ) -> None:
        self._most = most
        self._more = more
        self._waiting = waiting
        self._seconds = seconds
        self._what = what
        self._running: list[str] = []  # callers
        self._lines: dict[str, list[asyncio.Future[None]]] = {}  # by caller, the one that was served last at the end

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for this task's caller during the block.

        Raises:
            TooManyWait: it gets none.
        """
        leave = await self.enter(caller_here())
        try:
            yield
        finally:
            leave()

    async def enter(self, caller: str) -> Callable[[], None]:
        """Wait for a place of a caller. Returns what frees it; only the first call does.

        Raises:
            TooManyWait: it gets none.
        """
        line = self._lines.setdefault(caller, [])
        if len(line) >= self._waiting:
            raise TooManyWait(self._what)
        turn = asyncio.get_running_loop().create_future()
        line.append(turn)
        self._next()
        left = False

        def leave() -> None:
            nonlocal left
            if left:
                return
            left = True
            if turn.done():
                self._running.remove(caller)
            else:
                line.remove(turn)
            self._next()

        try:
            await asyncio.wait((turn,), timeout=self._seconds)
            if not turn.done():
                raise TooManyWait(self._what)
        except BaseException:
            leave()
            raise
        return leave

    def _next(self) -> None:
        """Give the free places to those who wait, the callers that have fewer first."""
        self._lines = {caller: line for caller, line in self._lines.items() if line}
        while self._lines:
            caller = min(self._lines, key=self._running.count)
            if len(self._running) >= self._most + (0 if caller in self._running else self._more):
                return
            line = self._lines.pop(caller)
            line.pop(0).set_result(None)
            self._running.append(caller)
            if line:
                self._lines[caller] = line
